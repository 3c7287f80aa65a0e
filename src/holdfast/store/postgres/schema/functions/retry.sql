-- Gives final jobs a new life at a person's request: attempts and losses start at zero, and losses of the old life can
-- no longer be absolved. A job whose row in `job` is gone stays as it is.
CREATE OR REPLACE FUNCTION holdfast.retry(ids uuid[]) RETURNS TABLE (id uuid, retrying text)
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
        RETURNING finished.id, finished.fence, finished.state, ended.priority, ended.queue, ended.kind
    ),
    again AS (
        INSERT INTO holdfast.ready AS new_ready (id, run_at, fence, priority, queue, kind)
        SELECT id, moment, fence, priority, queue, kind FROM exhumed
        UNION ALL
        SELECT id, moment, fence, priority, queue, kind FROM reopened
        RETURNING new_ready.id, new_ready.queue
    ),
    forgiven AS (
        UPDATE holdfast.attempt_error SET lost_claim = NULL
        FROM again WHERE attempt_error.job_id = ANY (ARRAY[again.id]) AND attempt_error.lost_claim IS NOT NULL
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(change.id), change.state, -count(*), change.queue, change.kind
        FROM (SELECT id, state, queue, kind FROM exhumed UNION ALL SELECT id, state, queue, kind FROM reopened) AS change
        GROUP BY 1, 2, 4, 5
    ),
    rung AS MATERIALIZED (SELECT holdfast.ring(ARRAY(SELECT again.queue FROM again)))
    -- OFFSET 0 keeps each of these a lookup by key: planned while a table is empty, it might read the whole table.
    SELECT given.id,
           CASE
               WHEN EXISTS (SELECT FROM again WHERE again.id = given.id) THEN 'ready'
               WHEN EXISTS (SELECT FROM holdfast.lease WHERE lease.id = given.id OFFSET 0)
                 OR EXISTS (SELECT FROM holdfast.ready WHERE ready.id = given.id OFFSET 0) THEN 'live'
               WHEN EXISTS (SELECT FROM holdfast.finished WHERE finished.id = given.id OFFSET 0)
                    AND EXISTS (SELECT FROM holdfast.job WHERE job.id = given.id OFFSET 0)
                 OR EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = given.id OFFSET 0) THEN 'locked'
               ELSE 'unknown'
           END
    FROM given CROSS JOIN rung;
END
$$;
