-- Rows of processes that died while they waited. Skips what another one removes at this moment.
DELETE FROM holdfast.waiter
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.waiter
    WHERE until < clock_timestamp() - interval '1 minute'
    FOR UPDATE SKIP LOCKED
))
