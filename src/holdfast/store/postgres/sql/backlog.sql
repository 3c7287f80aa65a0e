-- The first job of each lane by one step in the index, then the due jobs of each queue, lane by lane and no more than asked.
-- $1 at most for each queue
WITH RECURSIVE lane AS (
    (SELECT queue, priority, kind, run_at FROM holdfast.ready ORDER BY queue, priority, kind, run_at, id LIMIT 1)
    UNION ALL
    SELECT following.* FROM lane
    CROSS JOIN LATERAL (
        SELECT ready.queue, ready.priority, ready.kind, ready.run_at FROM holdfast.ready
        WHERE (ready.queue, ready.priority, ready.kind) > (lane.queue, lane.priority, lane.kind)
        ORDER BY ready.queue, ready.priority, ready.kind, ready.run_at, ready.id LIMIT 1
    ) AS following
),
moment AS MATERIALIZED (SELECT holdfast.now() AS now),
due_lane AS MATERIALIZED (SELECT lane.* FROM lane JOIN moment ON lane.run_at <= moment.now),
due_queue AS MATERIALIZED (SELECT queue, min(run_at) AS first FROM due_lane GROUP BY queue)
SELECT due_queue.queue, counted.jobs, moment.now - due_queue.first AS oldest
FROM moment
CROSS JOIN due_queue
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (
        SELECT FROM due_lane
        JOIN holdfast.ready
            ON ready.queue = due_lane.queue AND ready.priority = due_lane.priority AND ready.kind = due_lane.kind
            AND ready.run_at <= moment.now
        WHERE due_lane.queue = due_queue.queue
        LIMIT $1
    ) AS one
) AS counted
ORDER BY due_queue.queue
