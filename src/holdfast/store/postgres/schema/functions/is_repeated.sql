-- An id names one call: whether the job of this id came with this key. It may have lost the key since, to a later job or
-- because its time was over; a repeated call must neither make a second job nor replace what came after.
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
