-- A producer met a key. Says what is to be done: `keep` the job that has it, `replace` what that job is to do (its row of
-- `ready` is taken away here), or make a `new` job, to which the key belongs from now on. Null: the key has changed hands
-- meanwhile, ask again.
-- A key without a time is held by its job alone: once that is gone the key is free, though its row may still be there.
-- Rows are locked in one order: the key, then the row of `ready`. Without the lock on the key a second replacement could
-- find no row of `ready` between the first one's DELETE and INSERT, and take the job for a running one.
-- With that lock, a DELETE that finds nothing met a job that is running or final, or became so just then.
CREATE OR REPLACE FUNCTION holdfast.meet_key(
    of_tenant text, of_kind text, met text, new_id uuid, replacing boolean, key_window interval,
    OUT answer text, OUT kept_id uuid, OUT kept_fence bigint, OUT kept_suspicion smallint
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    held holdfast.key;
    held_until timestamptz;
    since timestamptz;
BEGIN
    SELECT * INTO held FROM holdfast.key WHERE key.tenant = of_tenant AND key.kind = of_kind AND key.key = met;
    kept_id := held.job_id;
    held_until := held.until;
    IF kept_id IS NULL THEN
        RETURN;
    -- No retention is shorter than an hour, so a younger job is there. To look for it would lock all partitions.
    ELSIF held_until IS NULL AND (key_window IS NOT NULL OR kept_id < holdfast.first_id(moment - interval '1 hour')) THEN
        since := coalesce((SELECT job.created_at FROM holdfast.job WHERE job.id = kept_id),
                          (SELECT dead_letter.created_at FROM holdfast.dead_letter WHERE dead_letter.id = kept_id));
        -- The job came without a window, so one that is asked for now is counted from when it came.
        held_until := coalesce(since + key_window, CASE WHEN since IS NULL THEN moment END);
    END IF;
    IF held_until <= moment THEN
        answer := 'new';
    ELSIF replacing AND kept_id <> new_id THEN
        answer := 'replace';
    ELSE
        answer := 'keep';
        RETURN;
    END IF;
    IF holdfast.is_repeated(new_id, of_tenant, of_kind, met) THEN
        answer := 'keep';
        kept_id := new_id;
        RETURN;
    END IF;
    PERFORM FROM holdfast.key
    WHERE key.tenant = of_tenant AND key.kind = of_kind AND key.key = met
      AND key.job_id = kept_id AND key.until IS NOT DISTINCT FROM held.until
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        answer := NULL;
        RETURN;
    END IF;
    IF answer = 'replace' THEN
        DELETE FROM holdfast.ready WHERE ready.id = kept_id
        RETURNING ready.fence, ready.suspicion INTO kept_fence, kept_suspicion;
        answer := CASE WHEN FOUND THEN 'replace' ELSE 'new' END;
    END IF;
    IF answer = 'new' THEN
        UPDATE holdfast.key SET job_id = new_id, until = holdfast.now() + key_window
        WHERE key.tenant = of_tenant AND key.kind = of_kind AND key.key = met;
    END IF;
END
$$;
