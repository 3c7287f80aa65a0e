-- Bytes of the write-ahead log, and pages that were looked at, whether they had to be read or were there.
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, (blks_hit + blks_read)::bigint
FROM pg_stat_database WHERE datname = current_database()
