-- Removes the rows of processes that died while waiting. Skips rows that another process is removing.
DELETE FROM holdfast.waiter
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.waiter
    WHERE until < clock_timestamp() - interval '1 minute'
    FOR UPDATE SKIP LOCKED
))
