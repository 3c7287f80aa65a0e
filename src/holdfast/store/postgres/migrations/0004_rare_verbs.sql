-- Verbs that run less often, as functions for the same reason as the hot ones: planned while all tables were empty, the
-- plain statements read 1,000 to 17,000 blocks for ten jobs when they were full (tests/postgres/test_cost.py).

-- Why a change that named a fence was not done: another transaction holds the lease, this fence has finished the job
-- before, or the lease is lost. `= ANY (ARRAY[…])`, because EXISTS with a plain equality may become a hash of the table.
CREATE FUNCTION holdfast.why_not_held(ids uuid[], fences bigint[], holders uuid[])
RETURNS TABLE (number bigint, fenced text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT given.number,
           CASE
               WHEN EXISTS (SELECT FROM holdfast.lease
                            WHERE lease.id = ANY (ARRAY[given.id]) AND lease.fence = given.fence
                              AND lease.holder = given.holder) THEN 'locked'
               WHEN EXISTS (SELECT FROM holdfast.finished
                            WHERE finished.id = ANY (ARRAY[given.id]) AND finished.fence = given.fence)
                 OR EXISTS (SELECT FROM holdfast.dead_letter
                            WHERE dead_letter.id = ANY (ARRAY[given.id]) AND dead_letter.fence = given.fence)
                   THEN 'already'
               ELSE 'stale'
           END
    FROM unnest(ids, fences, holders) WITH ORDINALITY AS given (id, fence, holder, number)
    ORDER BY given.number;
END
$$;

-- Each id is in exactly one of the tables, so at most one branch applies to it. A lease that a transaction is finishing is
-- not waited for: its job is about to be final.
CREATE FUNCTION holdfast.cancel(ids uuid[]) RETURNS TABLE (id uuid, canceling text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (SELECT DISTINCT given.id FROM unnest(ids) AS given (id)),
    waiting AS MATERIALIZED (
        SELECT given.id FROM given
        CROSS JOIN LATERAL (SELECT FROM holdfast.ready WHERE ready.id = given.id FOR UPDATE SKIP LOCKED) AS ready
    ),
    unqueued AS (
        DELETE FROM holdfast.ready USING waiting WHERE ready.id = ANY (ARRAY[waiting.id])
        RETURNING ready.id, ready.attempt, ready.losses, ready.queue, ready.kind
    ),
    buried AS MATERIALIZED (
        SELECT given.id FROM given
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.dead_letter WHERE dead_letter.id = given.id FOR UPDATE SKIP LOCKED
        ) AS dead_letter
    ),
    exhumed AS (
        DELETE FROM holdfast.dead_letter USING buried WHERE dead_letter.id = ANY (ARRAY[buried.id])
        RETURNING dead_letter.*
    ),
    kept AS (
        -- The partition that the job was enqueued into may be gone; the dead letter has the whole job.
        INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
                                  payload, headers)
        SELECT id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
        FROM exhumed
        ON CONFLICT DO NOTHING
    ),
    ended AS (
        INSERT INTO holdfast.finished (id, started_at, finished_at, attempt, losses, state)
        SELECT id, NULL, moment, attempt, losses, 'canceled'::holdfast.job_state FROM unqueued
        UNION ALL
        SELECT id, started_at, moment, attempt, losses, 'canceled'::holdfast.job_state FROM exhumed
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(change.id), change.state, sum(change.amount), change.queue, change.kind
        FROM (
            SELECT id, 'canceled'::holdfast.job_state AS state, 1 AS amount, queue, kind FROM unqueued
            UNION ALL SELECT id, 'canceled', 1, queue, kind FROM exhumed
            UNION ALL SELECT id, state, -1, queue, kind FROM exhumed
        ) AS change
        GROUP BY 1, 2, 4, 5
    ),
    held AS MATERIALIZED (
        SELECT given.id FROM given
        CROSS JOIN LATERAL (SELECT FROM holdfast.lease WHERE lease.id = given.id FOR NO KEY UPDATE SKIP LOCKED) AS lease
    ),
    asked AS (
        UPDATE holdfast.lease SET cancel_requested = true FROM held WHERE lease.id = ANY (ARRAY[held.id])
        RETURNING lease.id
    )
    SELECT given.id,
           CASE
               WHEN EXISTS (SELECT FROM unqueued WHERE unqueued.id = given.id)
                 OR EXISTS (SELECT FROM exhumed WHERE exhumed.id = given.id) THEN 'canceled'
               WHEN EXISTS (SELECT FROM asked WHERE asked.id = given.id) THEN 'requested'
               WHEN EXISTS (SELECT FROM holdfast.finished WHERE finished.id = ANY (ARRAY[given.id])) THEN 'final'
               WHEN EXISTS (SELECT FROM holdfast.lease WHERE lease.id = ANY (ARRAY[given.id]))
                 OR EXISTS (SELECT FROM holdfast.ready WHERE ready.id = ANY (ARRAY[given.id]))
                 OR EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ARRAY[given.id])) THEN 'locked'
               ELSE 'unknown'
           END
    FROM given;
END
$$;

-- A person's new life for final jobs: attempts and losses start at zero. One whose job is gone stays as it is.
CREATE FUNCTION holdfast.retry(ids uuid[]) RETURNS TABLE (id uuid, retrying text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (SELECT DISTINCT given.id FROM unnest(ids) AS given (id)),
    buried AS MATERIALIZED (
        SELECT given.id FROM given
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.dead_letter WHERE dead_letter.id = given.id FOR UPDATE SKIP LOCKED
        ) AS dead_letter
    ),
    exhumed AS (
        DELETE FROM holdfast.dead_letter USING buried WHERE dead_letter.id = ANY (ARRAY[buried.id])
        RETURNING dead_letter.*
    ),
    kept AS (
        INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
                                  payload, headers)
        SELECT id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
        FROM exhumed
        ON CONFLICT DO NOTHING
    ),
    ended AS MATERIALIZED (
        SELECT given.id, job.priority, job.queue, job.kind FROM given
        CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = given.id LIMIT 1) AS job
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.finished WHERE finished.id = given.id FOR UPDATE SKIP LOCKED
        ) AS finished
    ),
    reopened AS (
        DELETE FROM holdfast.finished USING ended WHERE finished.id = ANY (ARRAY[ended.id])
        RETURNING finished.id, finished.state, ended.priority, ended.queue, ended.kind
    ),
    again AS (
        INSERT INTO holdfast.ready AS new_ready (id, run_at, priority, queue, kind)
        SELECT id, moment, priority, queue, kind FROM exhumed
        UNION ALL
        SELECT id, moment, priority, queue, kind FROM reopened
        RETURNING new_ready.id, new_ready.queue
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(change.id), change.state, -count(*), change.queue, change.kind
        FROM (SELECT id, state, queue, kind FROM exhumed UNION ALL SELECT id, state, queue, kind FROM reopened) AS change
        GROUP BY 1, 2, 4, 5
    ),
    rung AS MATERIALIZED (SELECT holdfast.ring(ARRAY(SELECT again.queue FROM again)))
    SELECT given.id,
           CASE
               WHEN EXISTS (SELECT FROM again WHERE again.id = given.id) THEN 'ready'
               WHEN EXISTS (SELECT FROM holdfast.lease WHERE lease.id = ANY (ARRAY[given.id]))
                 OR EXISTS (SELECT FROM holdfast.ready WHERE ready.id = ANY (ARRAY[given.id])) THEN 'live'
               WHEN EXISTS (SELECT FROM holdfast.finished WHERE finished.id = ANY (ARRAY[given.id]))
                    AND EXISTS (SELECT FROM holdfast.job WHERE job.id = ANY (ARRAY[given.id]))
                 OR EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ARRAY[given.id])) THEN 'locked'
               ELSE 'unknown'
           END
    FROM given CROSS JOIN rung;
END
$$;

-- The first entry of each lane, one index probe each; null if there is none.
CREATE FUNCTION holdfast.next_due(
    queues text[], kinds text[], suspects boolean, shard_index integer, shard_count integer
) RETURNS interval
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    earliest timestamptz;
BEGIN
    IF suspects THEN
        SELECT min(first.run_at) INTO earliest
        FROM unnest(queues) AS wanted_queue (queue)
        CROSS JOIN generate_series(0, 9) AS wanted_priority (priority)
        CROSS JOIN unnest(kinds) AS wanted_kind (kind)
        CROSS JOIN LATERAL (
            SELECT ready.run_at FROM holdfast.ready
            WHERE ready.queue = wanted_queue.queue AND ready.priority = wanted_priority.priority
              AND ready.kind = wanted_kind.kind AND ready.losses >= 2
              AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
            ORDER BY ready.run_at, ready.id
            LIMIT 1
        ) AS first;
    ELSE
        SELECT min(first.run_at) INTO earliest
        FROM unnest(queues) AS wanted_queue (queue)
        CROSS JOIN generate_series(0, 9) AS wanted_priority (priority)
        CROSS JOIN unnest(kinds) AS wanted_kind (kind)
        CROSS JOIN LATERAL (
            SELECT ready.run_at FROM holdfast.ready
            WHERE ready.queue = wanted_queue.queue AND ready.priority = wanted_priority.priority
              AND ready.kind = wanted_kind.kind AND ready.losses < 2
              AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
            ORDER BY ready.run_at, ready.id
            LIMIT 1
        ) AS first;
    END IF;
    RETURN earliest - holdfast.now();
END
$$;

-- Scans the leases, which are only what is running; skips those that a transaction is finishing. The qualification is
-- checked again on the newest version of each row, so a lease that was renewed in between is not rescued.
CREATE FUNCTION holdfast.rescue(at_most integer, deadly_losses integer, error text, kept_errors integer)
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
        SELECT lease.id, lease.fence FROM holdfast.lease
        WHERE lease.until <= moment
        ORDER BY lease.until, lease.id
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM holdfast.lease USING lost WHERE lease.id = ANY (ARRAY[lost.id]) AND lease.fence = lost.fence
        RETURNING lease.id, lease.claimed_at, lease.until, lease.priority, lease.attempt, lease.queue, lease.kind,
                  (lease.losses + 1)::smallint AS losses,
                  CASE WHEN lease.losses + 1 >= deadly_losses THEN 'dead'
                       WHEN lease.cancel_requested THEN 'canceled'
                       ELSE 'ready' END AS state
    ),
    again AS (
        INSERT INTO holdfast.ready (id, run_at, priority, attempt, losses, queue, kind)
        SELECT id, moment, priority, attempt, losses, queue, kind FROM gone WHERE state = 'ready'
    ),
    canceled AS (
        INSERT INTO holdfast.finished (id, started_at, finished_at, attempt, losses, state)
        SELECT id, claimed_at, moment, attempt, losses, 'canceled'::holdfast.job_state
        FROM gone WHERE state = 'canceled'
    ),
    dead AS (
        INSERT INTO holdfast.dead_letter (id, created_at, started_at, finished_at, priority, max_attempts, attempt,
            losses, state, queue, kind, tenant, correlation_id, key, payload, headers)
        SELECT gone.id, job.created_at, gone.claimed_at, moment, gone.priority, job.max_attempts, gone.attempt,
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
    )
    SELECT gone.id, gone.state FROM gone ORDER BY gone.until, gone.id;
END
$$;
