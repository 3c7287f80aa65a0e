SELECT (convert_from(payload, 'UTF8')::jsonb ->> 'job')::uuid AS job, status::text AS state FROM pgqueuer
WHERE status::text <> 'failed'
