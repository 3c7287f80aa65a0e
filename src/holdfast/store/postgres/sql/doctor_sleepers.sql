-- Processes that said they would wait for wake-ups, did not renew that, and were not forgotten by others either. In real
-- time, like the rows themselves.
-- $1 how long ago
SELECT count(DISTINCT holder) AS processes, max(clock_timestamp() - until) AS oldest
FROM holdfast.sleeper WHERE until < clock_timestamp() - $1::interval
