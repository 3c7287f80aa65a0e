-- Bytes of the write-ahead log, and pages accessed, whether they were read or already in memory.
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, (blks_hit + blks_read)::bigint
FROM pg_stat_database WHERE datname = current_database()
