-- Each id is in exactly one of the tables, so at most one branch applies to it. A lease that a transaction is finishing
-- is not waited for, because its job is about to be final. A job that moves between the locks is reported as locked.
-- The locks are separate statements, because the last one reads `finished` (decision 3).
CREATE OR REPLACE FUNCTION holdfast.cancel(ids uuid[]) RETURNS TABLE (id uuid, canceling text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    waiting uuid[] := ARRAY(SELECT ready.id FROM holdfast.ready WHERE ready.id = ANY (ids) FOR UPDATE SKIP LOCKED);
    buried uuid[] := ARRAY(
        SELECT dead_letter.id FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ids) FOR UPDATE SKIP LOCKED);
    running uuid[] := ARRAY(SELECT lease.id FROM holdfast.lease WHERE lease.id = ANY (ids) FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (SELECT DISTINCT given.id FROM unnest(ids) AS given (id)),
    unqueued AS (
        DELETE FROM holdfast.ready WHERE ready.id = ANY (waiting)
        RETURNING ready.id, ready.fence, ready.attempt, ready.losses, ready.queue, ready.kind
    ),
    exhumed AS (
        DELETE FROM holdfast.dead_letter WHERE dead_letter.id = ANY (buried) RETURNING dead_letter.*
    ),
    kept AS (
        -- The partition the job was enqueued into may be gone. The dead letter has the complete job.
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
    asked AS (
        UPDATE holdfast.lease SET cancel_requested = true WHERE lease.id = ANY (running) RETURNING lease.id
    )
    -- OFFSET 0 keeps each of these a lookup by key: planned while a table is empty, it might read the whole table.
    SELECT given.id,
           CASE
               WHEN EXISTS (SELECT FROM unqueued WHERE unqueued.id = given.id)
                 OR EXISTS (SELECT FROM exhumed WHERE exhumed.id = given.id) THEN 'canceled'
               WHEN EXISTS (SELECT FROM asked WHERE asked.id = given.id) THEN 'requested'
               WHEN EXISTS (SELECT FROM holdfast.finished WHERE finished.id = given.id OFFSET 0) THEN 'final'
               WHEN EXISTS (SELECT FROM holdfast.lease WHERE lease.id = given.id OFFSET 0)
                 OR EXISTS (SELECT FROM holdfast.ready WHERE ready.id = given.id OFFSET 0)
                 OR EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = given.id OFFSET 0) THEN 'locked'
               ELSE 'unknown'
           END
    FROM given;
    PERFORM holdfast.ring_waiters(ids);
END
$$;
