-- The view shows final jobs only while the queue's segment exists, hence the worker's slow rotation.
SELECT (args ->> 'job')::uuid AS job, job_id::text AS id, state::text AS state,
       extract(epoch FROM finalized_at)::float8 AS at
FROM awa.terminal_jobs
ORDER BY finalized_at
