-- Deletes old dead letters with everything that belongs to them, unless the id also belongs to a job that is not a dead
-- letter. Keys, locks and refusals are treated as in prune_part(). The next batch begins after `last_at` and `last_id`,
-- which are null at the end.
CREATE OR REPLACE FUNCTION holdfast.prune_dead_letters(
    retention interval, after_time timestamptz, after_id uuid, at_most integer
) RETURNS TABLE (outcome text, pruned bigint, last_at timestamptz, last_id uuid, refused bigint, refusal text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz := holdfast.now() - retention;
    old_ids uuid[];
    key_places tid[];
    place integer := 1;
    size integer := at_most;
    gone_now bigint;
BEGIN
    pruned := 0;
    refused := 0;
    IF NOT holdfast.try_chore('prune_dead_letters') THEN
        outcome := 'busy';
        RETURN NEXT;
        RETURN;
    END IF;
    outcome := 'pruned';
    WITH walked AS MATERIALIZED (
        SELECT dead_letter.id, dead_letter.finished_at FROM holdfast.dead_letter
        WHERE dead_letter.finished_at < cutoff AND (dead_letter.finished_at, dead_letter.id) > (after_time, after_id)
        ORDER BY dead_letter.finished_at, dead_letter.id
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
    SELECT array_agg(old.id), array_agg(old.key_place),
           (SELECT walked.finished_at FROM walked ORDER BY walked.finished_at, walked.id OFFSET at_most - 1 LIMIT 1),
           (SELECT walked.id FROM walked ORDER BY walked.finished_at, walked.id OFFSET at_most - 1 LIMIT 1)
    INTO old_ids, key_places, last_at, last_id FROM old;
    WHILE place <= cardinality(old_ids) LOOP
        BEGIN
            WITH old AS MATERIALIZED (
                SELECT * FROM unnest(old_ids[place:place + size - 1], key_places[place:place + size - 1])
                    AS old (id, key_place)
            ),
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
            SELECT count(*) INTO gone_now FROM gone;
            pruned := pruned + gone_now;
            place := place + size;
            size := size * 2;
        EXCEPTION WHEN integrity_constraint_violation OR raise_exception THEN
            IF size = 1 THEN
                refused := refused + 1;
                refusal := SQLERRM;
                place := place + 1;
            ELSE
                size := (size + 1) / 2;
            END IF;
        END;
    END LOOP;
    RETURN NEXT;
END
$$;
