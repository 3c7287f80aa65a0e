-- Registers or renews a process that sleeps on these queues, in real time, and returns how many others of its team
-- sleep on one of them. Only the holder writes its rows, so nothing needs to be unique. The comment on `sleeper` in
-- schema/tables.sql says why there is no index for that.
-- $1 queues, $2 holder, $3 for how long, $4 team, $5 one of the queues
WITH renewed AS (DELETE FROM holdfast.sleeper WHERE queue = ANY ($1::text[]) AND holder = $2),
written AS (
    INSERT INTO holdfast.sleeper (holder, until, team, queue)
    SELECT $2, clock_timestamp() + $3::interval, $4, wanted.queue FROM unnest($1::text[]) AS wanted (queue)
)
SELECT count(*) AS others
FROM holdfast.sleeper
WHERE queue = $5::text AND until > clock_timestamp() AND team = $4 AND holder <> $2
