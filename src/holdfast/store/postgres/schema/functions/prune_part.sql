-- Deletes jobs that finished before the retention, one by one, in the default partition and in partitions that cannot
-- be dropped. Walks the ids in order; where ids are times, only up to the retention. `last_id` is where to continue, or
-- null at the end.
-- A key goes with its job, unless its row has an end. A key that a producer is about to take over is not waited for:
-- producers lock keys in a different order, so waiting could deadlock. Its job stays until the next pass.
-- The locks are a separate statement, because a producer may have changed the key and the other one reads `job`
-- (decision 3).
-- A table of the application may refuse to let a job go (a foreign key, a trigger). The batch is then halved until the
-- job to blame is alone, which stays, and the others go. `refusal` is the last such error.
CREATE OR REPLACE FUNCTION holdfast.prune_part(part text, retention interval, after uuid, at_most integer)
RETURNS TABLE (outcome text, pruned bigint, last_id uuid, refused bigint, refusal text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    finished_part text := format('holdfast.%I', 'finished_' || part);
    upto uuid := CASE WHEN part = 'other' THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
                      ELSE holdfast.first_id(holdfast.now() - retention) END;
    old_ids uuid[];
    key_places tid[];
    place integer := 1;
    size integer := at_most;
    gone bigint;
BEGIN
    pruned := 0;
    refused := 0;
    IF NOT holdfast.try_chore('prune_jobs') THEN
        outcome := 'busy';
    ELSIF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'holdfast.finished'::regclass
                                                AND inhrelid = to_regclass(finished_part)) THEN
        outcome := 'changed';
    ELSE
        outcome := 'pruned';
        EXECUTE replace($statement$
            WITH walked AS MATERIALIZED (
                SELECT part.id FROM finished_part AS part WHERE part.id > $1 AND part.id <= $4 ORDER BY part.id LIMIT $2
            ),
            old AS (
                SELECT walked.id, own_key.place AS key_place FROM walked
                CROSS JOIN LATERAL (
                    SELECT FROM finished_part AS part
                    WHERE part.id = walked.id AND part.finished_at < $3
                    FOR UPDATE SKIP LOCKED
                ) AS part
                LEFT JOIN LATERAL (
                    SELECT key.ctid AS place FROM holdfast.key
                    WHERE key.job_id = walked.id AND key.until IS NULL
                    FOR UPDATE SKIP LOCKED
                ) AS own_key ON true
                WHERE own_key.place IS NOT NULL OR NOT EXISTS (
                    SELECT FROM holdfast.key WHERE key.job_id = ANY (ARRAY[walked.id]) AND key.until IS NULL)
            )
            SELECT array_agg(old.id), array_agg(old.key_place),
                   (SELECT walked.id FROM walked ORDER BY walked.id OFFSET $2 - 1 LIMIT 1)
            FROM old
        $statement$, 'finished_part', finished_part)
            INTO old_ids, key_places, last_id USING after, at_most, holdfast.now() - retention, upto;
        WHILE place <= cardinality(old_ids) LOOP
            BEGIN
                EXECUTE replace($statement$
                    WITH old AS MATERIALIZED (SELECT * FROM unnest($1, $2) AS old (id, key_place)),
                    gone AS (
                        DELETE FROM finished_part AS part USING old WHERE part.id = ANY (ARRAY[old.id])
                        RETURNING part.id, part.state
                    ),
                    jobs AS (
                        DELETE FROM holdfast.job USING gone WHERE job.id = ANY (ARRAY[gone.id])
                        RETURNING job.id, gone.state, job.queue, job.kind
                    ),
                    keys AS (DELETE FROM holdfast.key USING old WHERE key.ctid = old.key_place),
                    errors AS (DELETE FROM holdfast.attempt_error USING gone WHERE attempt_error.job_id = ANY (ARRAY[gone.id])),
                    notes AS (DELETE FROM holdfast.progress USING gone WHERE progress.job_id = ANY (ARRAY[gone.id])),
                    entered AS (
                        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
                        SELECT holdfast.day_of(jobs.id), jobs.state, -count(*), jobs.queue, jobs.kind
                        FROM jobs GROUP BY 1, 2, 4, 5
                    )
                    SELECT count(*) FROM gone
                $statement$, 'finished_part', finished_part)
                    INTO gone USING old_ids[place:place + size - 1], key_places[place:place + size - 1];
                pruned := pruned + gone;
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
    END IF;
    RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION holdfast.prune_part FROM PUBLIC;
