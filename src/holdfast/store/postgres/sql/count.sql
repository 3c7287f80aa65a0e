-- Counts by state. Finished jobs are counted by a scan of what retention has left.
SELECT 'ready' AS state, count(*) AS jobs FROM holdfast.ready
UNION ALL SELECT 'running', count(*) FROM holdfast.lease
UNION ALL SELECT state::text, count(*) FROM holdfast.finished GROUP BY state
UNION ALL SELECT state::text, count(*) FROM holdfast.dead_letter GROUP BY state
