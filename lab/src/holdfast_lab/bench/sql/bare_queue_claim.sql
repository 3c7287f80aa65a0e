-- $1 queue, $2 most jobs to claim
SELECT ctid AS place, id, kind, payload
FROM holdfast.bare_queue
WHERE queue = $1 AND run_at <= (SELECT clock_timestamp())
ORDER BY queue, priority, run_at, id
LIMIT $2
FOR UPDATE SKIP LOCKED
