-- Walks the ids in order, which is nearly the order of time, up to the first run that is too young, so it reads little
-- more than it deletes. `last_id` is where to continue, or null at the end.
CREATE OR REPLACE FUNCTION holdfast.prune_runs(retention interval, after bigint, at_most integer)
RETURNS TABLE (outcome text, pruned bigint, last_id bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz := holdfast.now() - retention;
BEGIN
    IF NOT holdfast.try_chore('prune_runs') THEN
        RETURN QUERY SELECT 'busy', 0::bigint, NULL::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH walked AS MATERIALIZED (
        SELECT run.id, run.started_at FROM holdfast.run WHERE run.id > after ORDER BY run.id LIMIT at_most
    ),
    gone AS (
        DELETE FROM holdfast.run USING walked
        WHERE run.id = ANY (ARRAY[walked.id]) AND coalesce(run.finished_at, run.started_at) < cutoff
        RETURNING run.id
    )
    SELECT 'pruned', (SELECT count(*) FROM gone),
           CASE WHEN (SELECT bool_and(walked.started_at < cutoff) FROM walked)
                THEN (SELECT walked.id FROM walked ORDER BY walked.id OFFSET at_most - 1 LIMIT 1) END;
END
$$;
