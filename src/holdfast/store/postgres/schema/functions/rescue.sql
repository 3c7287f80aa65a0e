-- Puts jobs back whose lease ran out. It scans the leases, which are only what is running, and skips those that a
-- transaction is finishing. The qualification is checked again on the newest version of each row, so a lease that was
-- renewed in between is not rescued.
CREATE OR REPLACE FUNCTION holdfast.rescue(
    at_most integer, deadly_losses integer, error text, kept_errors integer, ended_by timestamptz DEFAULT NULL
)
RETURNS TABLE (id uuid, state text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    noted_error jsonb := error::jsonb
        || jsonb_build_object('at', to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
BEGIN
    RETURN QUERY
    WITH lost AS MATERIALIZED (
        SELECT lease.id, lease.claim FROM holdfast.lease
        WHERE lease.until <= least(moment, ended_by)
        ORDER BY lease.until, lease.id
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM holdfast.lease USING lost WHERE lease.id = ANY (ARRAY[lost.id]) AND lease.claim = lost.claim
        RETURNING lease.id, lease.fence, lease.claimed_at, lease.until, lease.priority, lease.attempt, lease.queue, lease.kind,
                  (lease.losses + 1)::smallint AS losses,
                  CASE WHEN lease.losses + 1 >= deadly_losses THEN 'dead'
                       WHEN lease.cancel_requested THEN 'canceled'
                       ELSE 'ready' END AS state
    ),
    again AS (
        INSERT INTO holdfast.ready (id, run_at, fence, priority, attempt, losses, is_suspect, queue, kind)
        SELECT id, moment, fence, priority, attempt, losses, losses >= 2, queue, kind FROM gone WHERE state = 'ready'
    ),
    canceled AS (
        INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state)
        SELECT id, fence, claimed_at, moment, attempt, losses, 'canceled'::holdfast.job_state
        FROM gone WHERE state = 'canceled'
    ),
    dead AS (
        INSERT INTO holdfast.dead_letter (id, fence, created_at, started_at, finished_at, priority, max_attempts, attempt,
            losses, state, queue, kind, tenant, correlation_id, key, payload, headers)
        SELECT gone.id, gone.fence, job.created_at, gone.claimed_at, moment, gone.priority, job.max_attempts, gone.attempt,
               gone.losses, 'dead'::holdfast.job_state, gone.queue, gone.kind, job.tenant, job.correlation_id, job.key,
               job.payload, job.headers
        FROM gone
        CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = gone.id LIMIT 1) AS job
        WHERE gone.state = 'dead'
    ),
    noted AS (
        INSERT INTO holdfast.attempt_error (job_id, error)
        SELECT gone.id, noted_error || jsonb_build_object('attempt', gone.attempt) FROM gone
    ),
    trimmed AS (
        -- This statement does not see the error that it adds, so the newest but one less stay.
        DELETE FROM holdfast.attempt_error USING gone
        WHERE attempt_error.job_id = ANY (ARRAY[gone.id])
          AND attempt_error.number <= (SELECT old.number FROM holdfast.attempt_error AS old WHERE old.job_id = gone.id
                                       ORDER BY old.number DESC OFFSET kept_errors - 1 LIMIT 1)
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), gone.state::holdfast.job_state, count(*), gone.queue, gone.kind
        FROM gone WHERE gone.state <> 'ready'
        GROUP BY 1, 2, 4, 5
    ),
    rung AS MATERIALIZED (
        SELECT holdfast.ring_waiters(ARRAY(SELECT gone.id FROM gone WHERE gone.state <> 'ready')),
               holdfast.ring(ARRAY(SELECT gone.queue FROM gone WHERE gone.state = 'ready'))
    )
    SELECT gone.id, gone.state FROM gone CROSS JOIN rung ORDER BY gone.until, gone.id;
END
$$;
