-- The argument excludes the jobs of the periodic task.
SELECT (args ->> 'job')::uuid AS job, status::text AS state FROM procrastinate_jobs
WHERE args ? 'job' AND status IN ('todo', 'doing')
