-- finish.sql for jobs that succeeded without a result.
-- Per job: $1 ids, $2 fences, $3 holders
WITH done AS MATERIALIZED (
    SELECT id, fence FROM holdfast.finish_succeeded($1, $2, $3)
),
rung AS MATERIALIZED (SELECT holdfast.ring_waiters(ARRAY(SELECT done.id FROM done)))
SELECT done.id, done.fence FROM done CROSS JOIN rung
