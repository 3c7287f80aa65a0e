-- From the commit on everything is due, and who sleeps is told. When that was.
-- $1 queues
WITH let_go AS (UPDATE holdfast.clock SET moved = interval '0')
SELECT clock_timestamp(), holdfast.ring($1)
