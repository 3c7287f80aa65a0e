-- All ends of jobs, in the order of the log. The log keeps no payload, so only PgQueuer's id identifies the job.
SELECT NULL::uuid AS job, job_id::text AS id, status::text AS state, extract(epoch FROM created)::float8 AS at
FROM pgqueuer_log
WHERE status::text IN ('successful', 'exception', 'canceled', 'deleted', 'failed')
ORDER BY pgqueuer_log.id
