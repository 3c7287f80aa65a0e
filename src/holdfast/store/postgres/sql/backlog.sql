-- Counts the due jobs of each queue, lane by lane, up to a limit.
-- $1 at most for each queue
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
due_lane AS MATERIALIZED (
    SELECT lane.* FROM holdfast.look(NULL, NULL, NULL) AS lane JOIN moment ON lane.run_at <= moment.now
    WHERE lane.queue IS NOT NULL
),
due_queue AS MATERIALIZED (SELECT queue, min(run_at) AS first FROM due_lane GROUP BY queue)
SELECT due_queue.queue, counted.jobs, moment.now - due_queue.first AS oldest
FROM moment
CROSS JOIN due_queue
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (
        SELECT FROM due_lane
        JOIN holdfast.ready
            ON ready.queue = due_lane.queue AND ready.is_suspect = due_lane.is_suspect
            AND ready.priority = due_lane.priority AND ready.kind = due_lane.kind AND ready.run_at <= moment.now
        WHERE due_lane.queue = due_queue.queue
        LIMIT $1
    ) AS one
) AS counted
ORDER BY due_queue.queue
