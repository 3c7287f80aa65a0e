-- The statement is a function so that its plan is pinned; see migrations/0004_rare_verbs.sql.
-- $1 ids
WITH done AS MATERIALIZED (
    SELECT id, canceling FROM holdfast.cancel($1)
),
rung AS MATERIALIZED (SELECT holdfast.ring_waiters(ARRAY(SELECT done.id FROM done)))
SELECT done.id, done.canceling FROM done CROSS JOIN rung
