-- Those of clients, but for our own.
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> 'holdfast-faults'
