SELECT (job.payload::jsonb ->> 'job')::uuid AS job, job.id::text AS id, finished.state::text AS state,
       extract(epoch FROM finished.finished_at)::float8 AS at
FROM holdfast.finished JOIN holdfast.job USING (id)
UNION ALL
SELECT (payload::jsonb ->> 'job')::uuid, id::text, state::text, extract(epoch FROM finished_at)::float8
FROM holdfast.dead_letter
