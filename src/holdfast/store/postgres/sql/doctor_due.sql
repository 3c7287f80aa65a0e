-- $1 due for longer than this, $2 at most
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
-- An expired lease keeps no job from running.
running AS (
    SELECT lease.queue, lease.kind, count(*) AS leases FROM moment JOIN holdfast.lease ON lease.until >= moment.now
    GROUP BY lease.queue, lease.kind
)
SELECT lane.queue, lane.kind, moment.now - min(lane.run_at) AS due_for, coalesce(max(running.leases), 0) AS running
FROM moment
CROSS JOIN holdfast.look(NULL, NULL, NULL) AS lane
LEFT JOIN running USING (queue, kind)
WHERE lane.queue IS NOT NULL
GROUP BY lane.queue, lane.kind, moment.now
HAVING moment.now - min(lane.run_at) > $1::interval
ORDER BY due_for DESC
LIMIT $2
