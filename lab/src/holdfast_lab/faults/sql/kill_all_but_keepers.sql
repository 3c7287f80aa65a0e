-- $1 the workers' role. A lease keeper is known by what it asked last.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = $1 AND query NOT LIKE '%.renew(%'
