-- finish.sql for jobs that succeeded without a result. Returns the fences of what was not done, and null if that is none.
-- Per job: $1 ids, $2 fences, $3 holders
WITH done AS MATERIALIZED (
    SELECT id, fence FROM holdfast.finish_succeeded($1, $2, $3)
),
rung AS MATERIALIZED (
    -- Asked here too: the call alone takes longer.
    SELECT CASE WHEN EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp())
                THEN holdfast.ring_waiters(ARRAY(SELECT done.id FROM done)) END
)
SELECT CASE WHEN (SELECT count(*) FROM done) < cardinality($1)
            THEN ARRAY(SELECT given FROM unnest($2::bigint[]) AS given EXCEPT SELECT done.fence FROM done) END
FROM rung
