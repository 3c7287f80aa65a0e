-- $1 a job that is leased: it is to be ready again, and is so already, for later
INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
SELECT id, run_at + interval '1 day', priority, queue, kind FROM holdfast.lease WHERE id = $1
