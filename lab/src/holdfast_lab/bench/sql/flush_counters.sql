-- A session normally reports its counters a second later; this one does so at the end of this statement.
SELECT pg_stat_force_next_flush()
