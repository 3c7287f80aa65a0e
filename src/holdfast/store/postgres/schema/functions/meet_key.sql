-- Decides what to do when a producer meets an existing key. `keep`: keep the job that holds it. `replace`: replace the
-- work of that job (its row in `ready` is deleted here). `new`: make a new job, which now owns the key. Null: the key
-- changed hands meanwhile, so the caller must ask again.
-- A key without an end is held only by its job: once the job is gone, the key is free, even if its row still exists.
-- Rows are locked in one order: the key, then the row in `ready`. Without the lock on the key, a second replacement
-- might find no row in `ready` between the first one's DELETE and INSERT, and take the job for a running one.
-- With that lock, a DELETE that finds nothing means that the job is running or final, or has just become so.
CREATE OR REPLACE FUNCTION holdfast.meet_key(
    of_tenant text, of_kind text, met text, new_id uuid, if_exists text, key_window interval,
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
    -- No retention is shorter than an hour, so a younger job still exists. Looking it up would lock all partitions.
    -- Whether a live job exists is checked below.
    ELSIF held_until IS NULL AND if_exists <> 'keep_live' AND (
        key_window IS NOT NULL OR kept_id < holdfast.first_id(moment - interval '1 hour')
    ) THEN
        since := coalesce((SELECT job.created_at FROM holdfast.job WHERE job.id = kept_id),
                          (SELECT dead_letter.created_at FROM holdfast.dead_letter WHERE dead_letter.id = kept_id));
        -- The job came without a window, so a window requested now counts from the job's creation.
        held_until := coalesce(since + key_window, CASE WHEN since IS NULL THEN moment END);
    END IF;
    answer := CASE WHEN held_until <= moment THEN 'new' WHEN kept_id = new_id THEN 'keep' ELSE if_exists END;
    IF answer = 'keep_live' THEN
        -- One statement checks both, because the job may be moving from one table to the other.
        answer := CASE WHEN EXISTS (SELECT FROM holdfast.ready WHERE ready.id = kept_id)
                         OR EXISTS (SELECT FROM holdfast.lease WHERE lease.id = kept_id) THEN 'keep' ELSE 'new' END;
    END IF;
    IF answer = 'keep' THEN
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
