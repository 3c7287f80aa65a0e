-- Whether the job with this id came with this key; an id identifies one call. The job may have lost the key since then,
-- to a later job or because the key expired. A repeated call must neither make a second job nor replace what came
-- after.
CREATE OR REPLACE FUNCTION holdfast.is_repeated(new_id uuid, of_tenant text, of_kind text, met text)
RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM holdfast.job
                   WHERE job.id = new_id AND job.tenant = of_tenant AND job.kind = of_kind AND job.key = met)
        OR EXISTS (SELECT FROM holdfast.dead_letter AS dead
                   WHERE dead.id = new_id AND dead.tenant = of_tenant AND dead.kind = of_kind AND dead.key = met);
END
$$;
