-- All ends of jobs, according to their events.
SELECT (job.args ->> 'job')::uuid AS job, job.id::text AS id, event.type::text AS state,
       extract(epoch FROM event.at)::float8 AS at
FROM procrastinate_events AS event JOIN procrastinate_jobs AS job ON job.id = event.job_id
WHERE job.args ? 'job' AND event.type::text IN ('succeeded', 'failed', 'aborted', 'cancelled')
ORDER BY event.id
