-- Which jobs hold these keys, with each key's number in the arrays. An expired key holds no job. A job may be gone
-- while its key's row still exists. One probe per key, because waiters ask again and again; OFFSET 0 keeps it a probe.
CREATE OR REPLACE FUNCTION holdfast.find(tenants text[], kinds text[], keys text[]) RETURNS TABLE (number bigint, id uuid)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    SELECT given.number, held.job_id
    FROM unnest(tenants, kinds, keys) WITH ORDINALITY AS given (tenant, kind, key, number)
    CROSS JOIN LATERAL (
        SELECT key.job_id FROM holdfast.key
        WHERE key.tenant = given.tenant AND key.kind = given.kind AND key.key = given.key
          AND (key.until IS NULL OR key.until > moment)
        OFFSET 0
    ) AS held;
END
$$;
