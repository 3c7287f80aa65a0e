-- Make a leased job ready as well, at a later time, so that it cannot become ready again. $1 its id
INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
SELECT id, run_at + interval '1 day', priority, queue, kind FROM holdfast.lease WHERE id = $1
