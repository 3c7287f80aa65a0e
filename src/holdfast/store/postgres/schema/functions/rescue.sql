-- Puts jobs with expired leases back. It scans the leases, which are only the running jobs, and skips those that a
-- transaction is finishing. The condition is checked again on the newest version of each row, so a lease that was
-- renewed in between is not rescued. The lock is a separate statement, because the other one reads `job` (decision 3).
-- The lease alone decides what a loss means (lifecycle.after_loss). A job that ran together with
-- others becomes at most a suspect. For a job that ran alone, the loss is a crash, and the job rests afterward.
-- `left_alone`: do not rescue these. `from_these`: rescue no others.
-- `ended_by`, `longest`: see Ended in store/contract.py.
CREATE OR REPLACE FUNCTION holdfast.rescue(
    at_most integer, left_alone uuid[], from_these uuid[], ended_by timestamptz, longest interval, error text,
    kept_errors integer, most_losses integer
) RETURNS TABLE (id uuid, state text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    noted_error jsonb := error::jsonb
        || jsonb_build_object('at', to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    died uuid[];
    lost uuid[] := ARRAY(
        SELECT lease.id FROM holdfast.lease
        WHERE lease.until <= least(moment, ended_by) AND NOT lease.id = ANY (left_alone)
          AND (from_these IS NULL OR lease.id = ANY (from_these))
          AND (holdfast.lease_length(lease.claim) <= longest) IS NOT FALSE
        ORDER BY lease.until, lease.id
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    );
BEGIN
    FOR id, state IN
    WITH gone AS (
        DELETE FROM holdfast.lease WHERE lease.id = ANY (lost) RETURNING lease.*
    ),
    counted AS MATERIALIZED (
        SELECT gone.*,
               CASE WHEN gone.crash_limit > 0 THEN least(gone.suspicion + 1, most_losses)
                    ELSE greatest(gone.suspicion, least(gone.suspicion + 1, 2)) END AS new_suspicion
        FROM gone
    ),
    judged AS MATERIALIZED (
        SELECT counted.*,
               CASE WHEN counted.cancel_requested THEN 'canceled'
                    WHEN counted.crash_limit > 0 AND counted.new_suspicion - 2 >= counted.crash_limit THEN 'dead'
                    ELSE 'ready' END AS state,
               CASE WHEN counted.crash_limit > 0 AND counted.new_suspicion > 2
                    THEN least(2 ^ least(counted.new_suspicion - 3, 6), 60) * interval '1 second'
                    ELSE interval '0' END AS rest,
               -- At the limit, both stay as they are, and so do the remaining attempts.
               least(counted.losses + 1, most_losses)::smallint AS new_losses,
               (counted.attempt - (counted.losses >= most_losses)::integer)::smallint AS new_attempt
        FROM counted
    ),
    again AS (
        INSERT INTO holdfast.ready (id, run_at, fence, priority, attempt, losses, suspicion, is_suspect, queue, kind)
        SELECT id, moment + rest, fence, priority, new_attempt, new_losses, new_suspicion, new_suspicion >= 2, queue, kind
        FROM judged WHERE state = 'ready'
    ),
    canceled AS (
        INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state)
        SELECT id, fence, claimed_at, moment, new_attempt, new_losses, 'canceled'::holdfast.job_state
        FROM judged WHERE state = 'canceled'
    ),
    dead AS (
        INSERT INTO holdfast.dead_letter (id, fence, created_at, started_at, finished_at, priority, max_attempts, attempt,
            losses, state, queue, kind, tenant, correlation_id, key, payload, headers)
        SELECT judged.id, judged.fence, job.created_at, judged.claimed_at, moment, judged.priority, job.max_attempts,
               judged.new_attempt, judged.new_losses, 'dead'::holdfast.job_state, judged.queue, judged.kind, job.tenant,
               job.correlation_id, job.key, job.payload, job.headers
        FROM judged
        CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = judged.id LIMIT 1) AS job
        WHERE judged.state = 'dead'
    ),
    noted AS (
        INSERT INTO holdfast.attempt_error (job_id, lost_claim, error)
        SELECT judged.id, CASE WHEN judged.new_suspicion > judged.suspicion THEN judged.claim END,
               noted_error || jsonb_build_object('attempt', judged.attempt)
        FROM judged
    ),
    trimmed AS (
        -- This statement does not see the error it adds, so it keeps one fewer of the older ones.
        DELETE FROM holdfast.attempt_error USING judged
        WHERE attempt_error.job_id = ANY (ARRAY[judged.id])
          AND attempt_error.number <= (SELECT old.number FROM holdfast.attempt_error AS old WHERE old.job_id = judged.id
                                       ORDER BY old.number DESC OFFSET kept_errors - 1 LIMIT 1)
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(judged.id), judged.state::holdfast.job_state, count(*), judged.queue, judged.kind
        FROM judged WHERE judged.state <> 'ready'
        GROUP BY 1, 2, 4, 5
    ),
    rung AS MATERIALIZED (
        SELECT holdfast.ring_waiters(ARRAY(SELECT judged.id FROM judged WHERE judged.state <> 'ready')),
               holdfast.ring(ARRAY(SELECT judged.queue FROM judged WHERE judged.state = 'ready'))
    )
    SELECT judged.id, judged.state FROM judged CROSS JOIN rung ORDER BY judged.until, judged.id
    LOOP
        RETURN NEXT;
        IF state = 'dead' THEN
            died := died || id;
        END IF;
    END LOOP;
    IF died IS NOT NULL THEN
        PERFORM holdfast.publish_deaths(died);
    END IF;
END
$$;
