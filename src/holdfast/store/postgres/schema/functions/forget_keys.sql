-- Deletes expired keys by the index on their end, so it reads only what it deletes.
CREATE OR REPLACE FUNCTION holdfast.forget_keys(at_most integer)
RETURNS TABLE (outcome text, forgotten bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    IF NOT holdfast.try_chore('prune_jobs') THEN
        RETURN QUERY SELECT 'busy', 0::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH over AS MATERIALIZED (
        SELECT key.ctid AS place FROM holdfast.key
        WHERE key.until <= moment
        ORDER BY key.until
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM holdfast.key USING over WHERE key.ctid = over.place RETURNING key.job_id)
    SELECT 'pruned', (SELECT count(*) FROM gone);
END
$$;
