-- Deletes old dead letters with everything that belongs to them, unless the id also belongs to a job that is not a dead
-- letter. Keys and locks are treated as in prune_part().
CREATE OR REPLACE FUNCTION holdfast.prune_dead_letters(retention interval, at_most integer)
RETURNS TABLE (outcome text, pruned bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz := holdfast.now() - retention;
    old_ids uuid[];
    key_places tid[];
BEGIN
    IF NOT holdfast.try_chore('prune_dead_letters') THEN
        RETURN QUERY SELECT 'busy', 0::bigint;
        RETURN;
    END IF;
    WITH walked AS MATERIALIZED (
        SELECT dead_letter.id FROM holdfast.dead_letter
        WHERE dead_letter.finished_at < cutoff
        ORDER BY dead_letter.finished_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    old AS (
        SELECT walked.id, own_key.place AS key_place FROM walked
        LEFT JOIN LATERAL (
            SELECT key.ctid AS place FROM holdfast.key
            WHERE key.job_id = walked.id AND key.until IS NULL
            FOR UPDATE SKIP LOCKED
        ) AS own_key ON true
        WHERE own_key.place IS NOT NULL OR NOT EXISTS (
            SELECT FROM holdfast.key WHERE key.job_id = ANY (ARRAY[walked.id]) AND key.until IS NULL)
    )
    SELECT array_agg(old.id), array_agg(old.key_place) INTO old_ids, key_places FROM old;
    RETURN QUERY
    WITH old AS MATERIALIZED (SELECT * FROM unnest(old_ids, key_places) AS old (id, key_place)),
    gone AS (
        DELETE FROM holdfast.dead_letter USING old WHERE dead_letter.id = ANY (ARRAY[old.id])
        RETURNING dead_letter.id, dead_letter.state, dead_letter.queue, dead_letter.kind
    ),
    ended AS MATERIALIZED (
        SELECT gone.id FROM gone
        WHERE NOT EXISTS (SELECT FROM holdfast.ready WHERE ready.id = ANY (ARRAY[gone.id]))
          AND NOT EXISTS (SELECT FROM holdfast.lease WHERE lease.id = ANY (ARRAY[gone.id]))
          AND NOT EXISTS (SELECT FROM holdfast.finished WHERE finished.id = ANY (ARRAY[gone.id]))
    ),
    jobs AS (DELETE FROM holdfast.job USING ended WHERE job.id = ANY (ARRAY[ended.id])),
    keys AS (DELETE FROM holdfast.key USING old WHERE key.ctid = old.key_place AND old.id IN (SELECT id FROM ended)),
    errors AS (DELETE FROM holdfast.attempt_error USING ended WHERE attempt_error.job_id = ANY (ARRAY[ended.id])),
    notes AS (DELETE FROM holdfast.progress USING ended WHERE progress.job_id = ANY (ARRAY[ended.id])),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), gone.state, -count(*), gone.queue, gone.kind FROM gone GROUP BY 1, 2, 4, 5
    )
    SELECT 'pruned', (SELECT count(*) FROM gone);
END
$$;
