-- Processes that registered for wake-ups, did not renew, and were not removed by others either; and the processes
-- waiting now. In real time, like the rows themselves.
-- $1 how long ago
SELECT count(DISTINCT holder) FILTER (WHERE until < moment.now - $1::interval) AS processes,
       max(moment.now - until) FILTER (WHERE until < moment.now - $1::interval) AS oldest,
       count(DISTINCT holder) FILTER (WHERE until >= moment.now) AS waiting
FROM (SELECT clock_timestamp() AS now) AS moment CROSS JOIN holdfast.sleeper
