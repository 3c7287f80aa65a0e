-- Deletes what a dropped day left behind in one of the tables beside `job`: rows of jobs that are neither there nor dead
-- letters. Walks only over ids that are older than the retention, as all of a dropped day's are.
CREATE OR REPLACE FUNCTION holdfast.sweep(side text, retention interval, after uuid, at_most integer)
RETURNS TABLE (outcome text, swept bigint, last_id uuid)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    first uuid := holdfast.first_id(holdfast.now() - retention);
BEGIN
    swept := 0;
    IF NOT holdfast.try_chore('prune_jobs') THEN
        outcome := 'busy';
    ELSE
        outcome := 'pruned';
        EXECUTE replace(replace($statement$
            WITH walked AS MATERIALIZED (
                SELECT side.job_id FROM side_table AS side
                WHERE side.job_id > $1 AND side.job_id < $2 AND only_these ORDER BY side.job_id LIMIT $3
            ),
            orphan AS MATERIALIZED (
                SELECT DISTINCT walked.job_id FROM walked
                WHERE NOT EXISTS (SELECT FROM holdfast.job WHERE job.id = ANY (ARRAY[walked.job_id]))
                  AND NOT EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ARRAY[walked.job_id]))
            ),
            locked AS MATERIALIZED (
                SELECT side.place FROM orphan
                CROSS JOIN LATERAL (
                    SELECT side.ctid AS place FROM side_table AS side
                    WHERE side.job_id = orphan.job_id AND only_these
                    FOR UPDATE SKIP LOCKED
                ) AS side
            ),
            gone AS (
                DELETE FROM side_table AS side USING locked WHERE side.ctid = locked.place
                RETURNING side.job_id
            )
            SELECT (SELECT count(*) FROM gone),
                   (SELECT walked.job_id FROM walked ORDER BY walked.job_id OFFSET $3 - 1 LIMIT 1)
        $statement$, 'side_table', format('holdfast.%I', side)),
                    'only_these', CASE side WHEN 'key' THEN 'side.until IS NULL' ELSE 'true' END)
            INTO swept, last_id USING after, first, at_most;
    END IF;
    RETURN NEXT;
END
$$;
