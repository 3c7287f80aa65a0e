-- Registers or renews a process that sleeps on these queues, in real time. Only the holder writes its rows, so nothing
-- needs to be unique; the comment on `sleeper` in schema/tables.sql says why there is no index for that.
-- $1 queues, $2 holder, $3 for how long
WITH renewed AS (DELETE FROM holdfast.sleeper WHERE queue = ANY ($1::text[]) AND holder = $2)
INSERT INTO holdfast.sleeper (holder, until, queue)
SELECT $2, clock_timestamp() + $3::interval, wanted.queue FROM unnest($1::text[]) AS wanted (queue)
