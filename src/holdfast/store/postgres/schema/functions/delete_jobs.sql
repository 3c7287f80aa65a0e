-- Deletes final jobs at a person's request, with everything that belongs to them. That includes keys, even within their
-- window. A key that a producer has locked is not waited for: producers lock keys in a different order, so waiting
-- could deadlock. Its job stays. Keys are locked in a separate statement, because a producer may have changed one and
-- the others read `job` (decision 3).
CREATE OR REPLACE FUNCTION holdfast.delete_jobs(ids uuid[]) RETURNS TABLE (id uuid, deleting text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    buried uuid[] := ARRAY(
        SELECT dead_letter.id FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ids) FOR UPDATE SKIP LOCKED);
    ended uuid[] := ARRAY(
        SELECT given.id FROM (SELECT DISTINCT given.id FROM unnest(ids) AS given (id)) AS given
        CROSS JOIN LATERAL (SELECT FROM holdfast.job WHERE job.id = given.id LIMIT 1) AS job
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.finished WHERE finished.id = given.id FOR UPDATE SKIP LOCKED
        ) AS finished
    );
    final_ids uuid[];
    key_places tid[];
BEGIN
    SELECT array_agg(each.id), array_agg(own_key.place) INTO final_ids, key_places
    FROM unnest(buried || ended) AS each (id)
    LEFT JOIN LATERAL (
        SELECT key.ctid AS place FROM holdfast.key WHERE key.job_id = each.id FOR UPDATE SKIP LOCKED
    ) AS own_key ON true
    WHERE own_key.place IS NOT NULL
       OR NOT EXISTS (SELECT FROM holdfast.key WHERE key.job_id = ANY (ARRAY[each.id]));
    RETURN QUERY
    WITH given AS MATERIALIZED (SELECT DISTINCT given.id FROM unnest(ids) AS given (id)),
    final AS MATERIALIZED (SELECT * FROM unnest(final_ids, key_places) AS final (id, key_place)),
    exhumed AS (
        DELETE FROM holdfast.dead_letter USING final WHERE dead_letter.id = ANY (ARRAY[final.id])
        RETURNING dead_letter.id, dead_letter.state, dead_letter.queue, dead_letter.kind
    ),
    closed AS (
        DELETE FROM holdfast.finished USING final WHERE finished.id = ANY (ARRAY[final.id])
        RETURNING finished.id, finished.state
    ),
    gone AS MATERIALIZED (
        SELECT id, state, queue, kind FROM exhumed
        UNION ALL
        SELECT closed.id, closed.state, job.queue, job.kind FROM closed
        CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = closed.id LIMIT 1) AS job
    ),
    jobs AS (DELETE FROM holdfast.job USING gone WHERE job.id = ANY (ARRAY[gone.id])),
    keys AS (DELETE FROM holdfast.key USING final WHERE key.ctid = final.key_place AND final.id IN (SELECT id FROM gone)),
    errors AS (DELETE FROM holdfast.attempt_error USING gone WHERE attempt_error.job_id = ANY (ARRAY[gone.id])),
    notes AS (DELETE FROM holdfast.progress USING gone WHERE progress.job_id = ANY (ARRAY[gone.id])),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), gone.state, -count(*), gone.queue, gone.kind FROM gone GROUP BY 1, 2, 4, 5
    )
    -- OFFSET 0 keeps each of these a lookup by key: planned while a table is empty, it might read the whole table.
    SELECT given.id,
           CASE
               WHEN EXISTS (SELECT FROM gone WHERE gone.id = given.id) THEN 'deleted'
               WHEN EXISTS (SELECT FROM holdfast.lease WHERE lease.id = given.id OFFSET 0)
                 OR EXISTS (SELECT FROM holdfast.ready WHERE ready.id = given.id OFFSET 0) THEN 'live'
               WHEN EXISTS (SELECT FROM holdfast.finished WHERE finished.id = given.id OFFSET 0)
                    AND EXISTS (SELECT FROM holdfast.job WHERE job.id = given.id OFFSET 0)
                 OR EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = given.id OFFSET 0) THEN 'locked'
               ELSE 'unknown'
           END
    FROM given;
END
$$;
