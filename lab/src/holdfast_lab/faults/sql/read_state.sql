-- All jobs, each with everything that claiming, renewing and finishing change.
SELECT id, 'ready', attempt::bigint, run_at FROM holdfast.ready
UNION ALL
SELECT id, 'running', fence, until FROM holdfast.lease
UNION ALL
SELECT id, state::text, fence, finished_at FROM holdfast.finished
UNION ALL
SELECT id, state::text, fence, finished_at FROM holdfast.dead_letter
