-- Returns jobs in readable form, newest first; missing jobs are left out. Every lookup is by id.
CREATE OR REPLACE FUNCTION holdfast.show(ids uuid[]) RETURNS TABLE (
    id uuid, kind text, queue text, priority smallint, tenant text, correlation_id text, key text, max_attempts smallint,
    created_at timestamptz, payload text, headers text, state text, attempt smallint, losses smallint, run_at timestamptz,
    started_at timestamptz, finished_at timestamptz, fence bigint, claim uuid, lease_until timestamptz,
    cancel_requested boolean, result text, progress text, errors text[], suspicion smallint
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT given.id,
           coalesce(job.kind, dead.kind), coalesce(job.queue, dead.queue), coalesce(job.priority, dead.priority),
           coalesce(job.tenant, dead.tenant), coalesce(job.correlation_id, dead.correlation_id),
           coalesce(job.key, dead.key), coalesce(job.max_attempts, dead.max_attempts),
           coalesce(job.created_at, dead.created_at),
           coalesce(job.payload, dead.payload)::text, coalesce(job.headers, dead.headers)::text,
           CASE WHEN ready.id IS NOT NULL THEN 'ready' WHEN lease.id IS NOT NULL THEN 'running'
                ELSE coalesce(finished.state, dead.state)::text END,
           coalesce(ready.attempt, lease.attempt, finished.attempt, dead.attempt),
           coalesce(ready.losses, lease.losses, finished.losses, dead.losses),
           coalesce(ready.run_at, lease.run_at),
           coalesce(lease.claimed_at, finished.started_at, dead.started_at),
           coalesce(finished.finished_at, dead.finished_at),
           CASE WHEN coalesce(lease.claim, finished.claim, dead.claim) IS NOT NULL
                THEN coalesce(lease.fence, finished.fence, dead.fence) END,
           lease.claim, lease.until, coalesce(lease.cancel_requested, false),
           finished.result::text, progress.value::text,
           ARRAY(SELECT attempt_error.error::text FROM holdfast.attempt_error
                 WHERE attempt_error.job_id = given.id ORDER BY attempt_error.number),
           coalesce(ready.suspicion, lease.suspicion, 0::smallint)
    FROM unnest(ids) AS given (id)
    LEFT JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = given.id LIMIT 1) AS job ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.ready WHERE ready.id = given.id LIMIT 1) AS ready ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.lease WHERE lease.id = given.id LIMIT 1) AS lease ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.finished WHERE finished.id = given.id LIMIT 1) AS finished ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.dead_letter WHERE dead_letter.id = given.id LIMIT 1) AS dead ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.progress WHERE progress.job_id = given.id LIMIT 1) AS progress ON true
    WHERE ready.id IS NOT NULL OR lease.id IS NOT NULL OR finished.id IS NOT NULL OR dead.id IS NOT NULL
    ORDER BY given.id DESC;
END
$$;
