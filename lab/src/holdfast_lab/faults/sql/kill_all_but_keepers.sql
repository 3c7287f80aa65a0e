-- Kill all connections of a role except those of lease keepers, recognized by their last query. $1 the workers' role
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = $1 AND query NOT LIKE '%.renew(%'
