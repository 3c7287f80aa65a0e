-- A job is in exactly one of ready, lease, finished and dead_letter; every lookup is by id.
-- $1 ids
SELECT given.id,
       coalesce(job.kind, dead.kind) AS kind, coalesce(job.queue, dead.queue) AS queue,
       coalesce(job.priority, dead.priority) AS priority, coalesce(job.tenant, dead.tenant) AS tenant,
       coalesce(job.correlation_id, dead.correlation_id) AS correlation_id, coalesce(job.key, dead.key) AS key,
       coalesce(job.max_attempts, dead.max_attempts) AS max_attempts,
       coalesce(job.created_at, dead.created_at) AS created_at,
       coalesce(job.payload, dead.payload)::text AS payload, coalesce(job.headers, dead.headers)::text AS headers,
       CASE WHEN ready.id IS NOT NULL THEN 'ready' WHEN lease.id IS NOT NULL THEN 'running'
            ELSE coalesce(finished.state, dead.state)::text END AS state,
       coalesce(ready.attempt, lease.attempt, finished.attempt, dead.attempt) AS attempt,
       coalesce(ready.losses, lease.losses, finished.losses, dead.losses) AS losses,
       coalesce(ready.run_at, lease.run_at) AS run_at,
       coalesce(lease.claimed_at, finished.started_at, dead.started_at) AS started_at,
       coalesce(finished.finished_at, dead.finished_at) AS finished_at,
       coalesce(lease.fence, finished.fence, dead.fence) AS fence,
       lease.holder, lease.until AS lease_until, coalesce(lease.cancel_requested, false) AS cancel_requested,
       finished.result::text AS result, progress.value::text AS progress,
       ARRAY(SELECT attempt_error.error::text FROM holdfast.attempt_error
             WHERE attempt_error.job_id = given.id ORDER BY attempt_error.number) AS errors
FROM unnest($1::uuid[]) AS given (id)
LEFT JOIN holdfast.job ON job.id = given.id
LEFT JOIN holdfast.ready ON ready.id = given.id
LEFT JOIN holdfast.lease ON lease.id = given.id
LEFT JOIN holdfast.finished ON finished.id = given.id
LEFT JOIN holdfast.dead_letter AS dead ON dead.id = given.id
LEFT JOIN holdfast.progress ON progress.job_id = given.id
WHERE ready.id IS NOT NULL OR lease.id IS NOT NULL OR finished.id IS NOT NULL OR dead.id IS NOT NULL
ORDER BY given.id DESC
