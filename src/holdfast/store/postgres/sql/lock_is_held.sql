-- So that whoever has to come back does not open a connection each time. Only looks: to try the lock here would keep it
-- from others for a moment. PostgreSQL shows a bigint key as two halves, with objsubid 1.
-- $1 the lock's text
SELECT EXISTS (
    SELECT FROM pg_locks CROSS JOIN (SELECT holdfast.lock_key($1) AS number) AS key
    WHERE locktype = 'advisory' AND objsubid = 1
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid = ((key.number >> 32) & 4294967295)::oid AND objid = (key.number & 4294967295)::oid
) AS held
