SELECT (job.payload::jsonb ->> 'job')::uuid AS job, 'ready' AS state FROM holdfast.ready JOIN holdfast.job USING (id)
UNION ALL
SELECT (job.payload::jsonb ->> 'job')::uuid, 'running' FROM holdfast.lease JOIN holdfast.job USING (id)
