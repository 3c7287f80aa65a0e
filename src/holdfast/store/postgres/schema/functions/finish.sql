-- Writes the outcomes of attempts and returns which leases it ended; `why_not_held` explains the others. It locks
-- first, and skips leases that a transaction holds to finish its job, so one such job cannot stall all others. The lock
-- is a separate statement, because a renewal may have changed the row and the other one reads `job` (decision 3).
CREATE OR REPLACE FUNCTION holdfast.finish(
    ids uuid[], claims uuid[], moves text[], states text[], delays interval[], moments timestamptz[],
    errors text[], results text[], kept_errors integer
) RETURNS TABLE (number bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    moment_text text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    is_locked boolean[];
BEGIN
    SELECT array_agg(lease.is_ours IS NOT NULL ORDER BY given.number) INTO is_locked
    FROM unnest(ids, claims) WITH ORDINALITY AS given (id, claim, number)
    LEFT JOIN LATERAL (
        SELECT true AS is_ours FROM holdfast.lease
        WHERE lease.id = given.id AND lease.claim = given.claim
        FOR UPDATE SKIP LOCKED
    ) AS lease ON true;
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT * FROM unnest(ids, claims, moves, states, delays, moments, errors, results) WITH ORDINALITY
            AS given (id, claim, move, state, delay, at, error, result, number)
        WHERE is_locked[given.number]
    ),
    gone AS (
        DELETE FROM holdfast.lease USING held WHERE lease.id = ANY (ARRAY[held.id]) AND lease.claim = held.claim
        RETURNING lease.id, lease.claim, lease.fence, lease.claimed_at, lease.run_at, lease.priority, lease.attempt,
                  lease.losses, lease.suspicion, lease.queue, lease.kind, held.number, held.move, held.delay, held.at,
                  held.result,
                  -- A job that a person asked to cancel does not become ready again, however its attempt ended.
                  CASE WHEN lease.cancel_requested AND held.state = 'ready' THEN 'canceled' ELSE held.state END AS state,
                  CASE WHEN lease.cancel_requested AND held.state = 'ready' AND held.error IS NULL
                       THEN '{"code": "CANCELED", "type": "Cancel", "message": "canceled by request", "traceback": ""}'
                       ELSE held.error END AS error
    ),
    again AS (
        INSERT INTO holdfast.ready (id, run_at, fence, priority, attempt, losses, suspicion, is_suspect, queue, kind)
        SELECT gone.id,
               CASE WHEN gone.move = 'release' THEN gone.run_at
                    ELSE greatest(coalesce(gone.at, moment + gone.delay), moment) END,
               gone.fence, gone.priority,
               (gone.attempt - CASE WHEN gone.move IN ('release', 'snooze', 'interrupt') THEN 1 ELSE 0 END)::smallint,
               gone.losses, gone.suspicion, gone.suspicion >= 2, gone.queue, gone.kind
        FROM gone WHERE gone.state = 'ready'
    ),
    ended AS (
        INSERT INTO holdfast.finished (id, claim, fence, started_at, finished_at, attempt, losses, state, result)
        SELECT gone.id, gone.claim, gone.fence, gone.claimed_at, moment, gone.attempt, gone.losses,
               gone.state::holdfast.job_state, gone.result::json
        FROM gone WHERE gone.state IN ('succeeded', 'canceled')
    ),
    dead AS (
        INSERT INTO holdfast.dead_letter (id, claim, fence, created_at, started_at, finished_at, priority, max_attempts,
            attempt, losses, state, queue, kind, tenant, correlation_id, key, payload, headers)
        SELECT gone.id, gone.claim, gone.fence, job.created_at, gone.claimed_at, moment, gone.priority, job.max_attempts,
               gone.attempt, gone.losses, gone.state::holdfast.job_state, gone.queue, gone.kind, job.tenant,
               job.correlation_id, job.key, job.payload, job.headers
        FROM gone
        CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = gone.id LIMIT 1) AS job
        WHERE gone.state IN ('failed', 'dead')
    ),
    noted AS (
        INSERT INTO holdfast.attempt_error (job_id, error)
        SELECT gone.id, gone.error::jsonb || jsonb_build_object('attempt', gone.attempt, 'at', moment_text)
        FROM gone WHERE gone.error IS NOT NULL
    ),
    trimmed AS (
        -- This statement does not see the error it adds, so it keeps one fewer of the older ones.
        DELETE FROM holdfast.attempt_error USING gone
        WHERE gone.error IS NOT NULL AND attempt_error.job_id = ANY (ARRAY[gone.id])
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
        -- As for an enqueued job: a sleeping process must learn about jobs due soon, because its own worker may be full
        -- then.
        SELECT CASE WHEN 'ready' = ANY (states) THEN holdfast.ring(ARRAY(
            SELECT gone.queue FROM gone
            WHERE gone.state = 'ready'
              AND (gone.move = 'release' OR coalesce(gone.at, moment + gone.delay) <= moment + interval '1 minute')
        )) END
    )
    SELECT gone.number FROM gone CROSS JOIN rung;
    IF 'failed' = ANY (states) OR 'dead' = ANY (states) THEN
        PERFORM holdfast.publish_deaths(ARRAY(
            SELECT DISTINCT given.id FROM unnest(ids, states, is_locked) AS given (id, state, is_ours)
            WHERE given.is_ours AND given.state IN ('failed', 'dead')
        ));
    END IF;
    -- Checked here too, because the call alone takes longer than the check.
    IF EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp()) THEN
        PERFORM holdfast.ring_waiters(ids);
    END IF;
END
$$;
