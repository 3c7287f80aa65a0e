-- Runs that started long ago and never ended, oldest first. Uses the index of unfinished runs.
-- $1 how long a run may take, $2 at most
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now)
SELECT run.name, run.replica, moment.now - run.started_at AS lasting
FROM moment JOIN holdfast.run ON run.finished_at IS NULL AND run.started_at < moment.now - $1::interval
ORDER BY lasting DESC
LIMIT $2
