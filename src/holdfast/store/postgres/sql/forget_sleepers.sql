-- Removes the rows of processes that died while asleep. Skips rows that another process is removing.
DELETE FROM holdfast.sleeper
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.sleeper
    WHERE until < clock_timestamp() - interval '1 minute'
    FOR UPDATE SKIP LOCKED
))
