-- $1 most connections to kill, chosen at random. Peers name their connections in different ways, so all clients count.
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    ORDER BY random() LIMIT $1
) AS victims
