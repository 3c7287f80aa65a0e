-- Deletes what a dropped day left behind in one of the tables next to `job`: rows of jobs that no longer exist and are
-- not dead letters. Walks only ids older than the retention, as all ids of a dropped day are. Locks are a separate
-- statement, because a producer may have changed the row and the other one reads `job` (decision 3).
CREATE OR REPLACE FUNCTION holdfast.sweep(side text, retention interval, after uuid, at_most integer)
RETURNS TABLE (outcome text, swept bigint, last_id uuid)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    first uuid := holdfast.first_id(holdfast.now() - retention);
    only_these text := CASE side WHEN 'key' THEN 'side.until IS NULL' ELSE 'true' END;
    orphans uuid[];
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
            orphan AS (
                SELECT DISTINCT walked.job_id FROM walked
                WHERE NOT EXISTS (SELECT FROM holdfast.job WHERE job.id = ANY (ARRAY[walked.job_id]))
                  AND NOT EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ARRAY[walked.job_id]))
            )
            SELECT ARRAY(SELECT orphan.job_id FROM orphan),
                   (SELECT walked.job_id FROM walked ORDER BY walked.job_id OFFSET $3 - 1 LIMIT 1)
        $statement$, 'side_table', format('holdfast.%I', side)), 'only_these', only_these)
            INTO orphans, last_id USING after, first, at_most;
        EXECUTE replace(replace($statement$
            WITH locked AS MATERIALIZED (
                SELECT side.ctid AS place FROM side_table AS side
                WHERE side.job_id = ANY ($1) AND only_these
                FOR UPDATE SKIP LOCKED
            )
            DELETE FROM side_table AS side USING locked WHERE side.ctid = locked.place
        $statement$, 'side_table', format('holdfast.%I', side)), 'only_these', only_these) USING orphans;
        GET DIAGNOSTICS swept = ROW_COUNT;
    END IF;
    RETURN NEXT;
END
$$;
