-- Every end of a job, in the order of the log. It keeps no payload, so that the job is known by PgQueuer's id alone.
SELECT NULL::uuid AS job, job_id::text AS id, status::text AS state, extract(epoch FROM created)::float8 AS at
FROM pgqueuer_log
WHERE status::text IN ('successful', 'exception', 'canceled', 'deleted', 'failed')
ORDER BY pgqueuer_log.id
