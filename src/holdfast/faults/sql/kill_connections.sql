-- $1 at most; all but our own
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
      AND application_name <> 'holdfast-faults'
    ORDER BY random() LIMIT $1
) AS victims
