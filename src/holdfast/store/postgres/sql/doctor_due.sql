-- The first job of each lane by one step in the index, and no walk over the others.
-- $1 due for longer than this, $2 at most
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
-- A lease that ran out is nobody's.
running AS (
    SELECT lease.queue, lease.kind, count(*) AS leases FROM moment JOIN holdfast.lease ON lease.until >= moment.now
    GROUP BY lease.queue, lease.kind
)
SELECT lane.queue, lane.kind, moment.now - min(lane.run_at) AS due_for, coalesce(max(running.leases), 0) AS running
FROM moment
CROSS JOIN lane
LEFT JOIN running USING (queue, kind)
GROUP BY lane.queue, lane.kind, moment.now
HAVING moment.now - min(lane.run_at) > $1::interval
ORDER BY due_for DESC
LIMIT $2
