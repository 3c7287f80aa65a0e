-- $1 application name, $2 most connections to kill, $3 seed that decides which ones
SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
    SELECT pid FROM (
        SELECT pid, row_number() OVER (ORDER BY backend_start, pid) AS place FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND application_name = $1
    ) AS clients
    ORDER BY md5(place::text || $3) LIMIT $2
) AS victims
