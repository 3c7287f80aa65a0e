-- Checks for the lock first, so a process that tries again and again does not open a connection each time. It only
-- looks, because trying the lock here would briefly keep it from others. PostgreSQL shows a bigint key as two halves,
-- with objsubid 1.
-- $1 the lock's text
SELECT EXISTS (
    SELECT FROM pg_locks CROSS JOIN (SELECT holdfast.lock_key($1) AS number) AS key
    WHERE locktype = 'advisory' AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid = ((key.number >> 32) & 4294967295)::oid AND objid = (key.number & 4294967295)::oid
) AS held
