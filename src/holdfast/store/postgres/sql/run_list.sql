-- Newest by start time. A queue's run is written at the end of its minute, so ids are in a different order. There are
-- two branches, so each reads its index from the newest end whichever plan is cached.
-- $1 name or null, $2 at most
WITH newest AS MATERIALIZED (
    (SELECT run.id FROM holdfast.run WHERE $1::text IS NULL ORDER BY run.started_at DESC, run.id DESC LIMIT $2)
    UNION ALL
    (SELECT run.id FROM holdfast.run WHERE run.name = $1
     ORDER BY run.name DESC, run.started_at DESC, run.id DESC LIMIT $2)
)
SELECT run.id, run.name, run.replica, run.occurrence, run.started_at, run.finished_at, run.result::text AS result,
       run.error::text AS error
FROM newest JOIN holdfast.run USING (id)
ORDER BY run.started_at DESC, run.id DESC
