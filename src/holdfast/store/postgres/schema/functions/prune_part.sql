-- For the default partition, and for those that cannot be dropped: deletes jobs that finished before the retention, one by
-- one. Walks the ids in order, where they are times up to the retention; `last_id` is where to go on, null at the end.
-- A key goes with its job, unless its row has a time. A key that a producer is about to take over is not waited for:
-- producers lock keys in another order, and waiting could be a deadlock. Its job stays until the next time.
CREATE OR REPLACE FUNCTION holdfast.prune_part(part text, retention interval, after uuid, at_most integer)
RETURNS TABLE (outcome text, pruned bigint, last_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    finished_part text := format('holdfast.%I', 'finished_' || part);
    upto uuid := CASE WHEN part = 'other' THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'
                      ELSE holdfast.first_id(holdfast.now() - retention) END;
BEGIN
    pruned := 0;
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
            old AS MATERIALIZED (
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
            ),
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
            SELECT (SELECT count(*) FROM gone),
                   (SELECT walked.id FROM walked ORDER BY walked.id OFFSET $2 - 1 LIMIT 1)
        $statement$, 'finished_part', finished_part)
            INTO pruned, last_id USING after, at_most, holdfast.now() - retention, upto;
    END IF;
    RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION holdfast.prune_part FROM PUBLIC;
