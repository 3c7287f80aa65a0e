-- The periodic task's own jobs have no such argument.
SELECT (args ->> 'job')::uuid AS job, status::text AS state FROM procrastinate_jobs
WHERE args ? 'job' AND status IN ('todo', 'doing')
