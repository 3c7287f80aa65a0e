-- Each id is in exactly one of the tables, so at most one branch applies to it. A lease that a transaction is finishing is
-- not waited for: its job is about to be final.
CREATE OR REPLACE FUNCTION holdfast.cancel(ids uuid[]) RETURNS TABLE (id uuid, canceling text)
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
        RETURNING ready.id, ready.fence, ready.attempt, ready.losses, ready.queue, ready.kind
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
        INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state)
        SELECT id, fence, NULL, moment, attempt, losses, 'canceled'::holdfast.job_state FROM unqueued
        UNION ALL
        SELECT id, fence, started_at, moment, attempt, losses, 'canceled'::holdfast.job_state FROM exhumed
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
    PERFORM holdfast.ring_waiters(ids);
END
$$;
