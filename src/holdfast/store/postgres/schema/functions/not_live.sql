-- Which of these jobs are neither ready nor running: they are final or do not exist. Two probes per job, because
-- waiters ask again and again. OFFSET 0 keeps each probe a lookup by key.
CREATE OR REPLACE FUNCTION holdfast.not_live(ids uuid[]) RETURNS TABLE (id uuid)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT given.id FROM unnest(ids) AS given (id)
    WHERE NOT EXISTS (SELECT FROM holdfast.lease WHERE lease.id = given.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM holdfast.ready WHERE ready.id = given.id OFFSET 0);
END
$$;
