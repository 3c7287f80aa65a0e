-- What the statistics say about the two tables that every job passes through. Scans nothing.
-- $1 more dead rows than this, $2 and more than this many for each live one
SELECT relname::text AS name, n_dead_tup AS dead, n_live_tup AS live, clock_timestamp() - last_autovacuum AS vacuumed
FROM pg_stat_user_tables
WHERE relid IN ('holdfast.ready'::regclass, 'holdfast.lease'::regclass) AND n_dead_tup > $1 AND n_dead_tup > $2 * n_live_tup
ORDER BY dead DESC
