-- The statement is a function so that its plan is pinned; see migrations/0004_rare_verbs.sql.
-- $1 at most, $2 losses at which a job is dead, $3 the error to note, $4 how many errors a job keeps
WITH done AS MATERIALIZED (
    SELECT id, state FROM holdfast.rescue($1, $2, $3, $4)
),
rung AS MATERIALIZED (SELECT holdfast.ring_waiters(ARRAY(SELECT done.id FROM done)))
SELECT done.id, done.state FROM done CROSS JOIN rung
