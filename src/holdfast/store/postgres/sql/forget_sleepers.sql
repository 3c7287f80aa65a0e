-- Rows of processes that died in their sleep. Skips what another one removes at this moment.
DELETE FROM holdfast.sleeper
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.sleeper
    WHERE until < clock_timestamp() - interval '1 minute'
    FOR UPDATE SKIP LOCKED
))
