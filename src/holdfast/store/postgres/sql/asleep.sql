-- Registers or renews who sleeps on these queues, in real time. Only the holder itself writes its rows, so nothing needs
-- to be unique; why there is no index for that, migrations/0006_wake.sql tells.
-- $1 queues, $2 holder, $3 for how long
WITH renewed AS (DELETE FROM holdfast.sleeper WHERE queue = ANY ($1::text[]) AND holder = $2)
INSERT INTO holdfast.sleeper (holder, until, queue)
SELECT $2, clock_timestamp() + $3::interval, wanted.queue FROM unnest($1::text[]) AS wanted (queue)
