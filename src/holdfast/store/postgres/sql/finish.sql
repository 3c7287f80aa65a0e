-- Returns what was done; why_not_held.sql tells about the rest.
-- Per job: $1 ids, $2 fences, $3 holders, $4 events, $5 states, $6 delays, $7 times, $8 errors, $9 results; $10 how many errors a job keeps
-- Rings for whoever waits for one of the jobs; the cross join is there because nobody would ask a CTE alone.
WITH done AS MATERIALIZED (
    SELECT id, fence FROM holdfast.finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
),
rung AS MATERIALIZED (
    -- Asked here too: the call alone takes longer.
    SELECT CASE WHEN EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp())
                THEN holdfast.ring_waiters(ARRAY(SELECT done.id FROM done)) END
)
SELECT done.id, done.fence FROM done CROSS JOIN rung
