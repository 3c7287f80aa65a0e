-- A session reports its counters before it leaves this list, which is a moment after its client disconnected.
SELECT count(*)
FROM pg_stat_activity AS other, pg_stat_activity AS own
WHERE own.pid = pg_backend_pid() AND other.datname = own.datname AND other.backend_type = 'client backend'
  AND other.backend_start > own.backend_start
