-- claim() for suspects. It takes nothing while another claim takes suspects, or while a suspect in these queues is
-- leased: its worker lets all other jobs end first, and one such worker at a time is enough.
CREATE OR REPLACE FUNCTION holdfast.claim_suspects(
    all_queues text[], as_claim uuid, floor_margin interval, at_most integer, large_from integer,
    suspects boolean, is_limited boolean, shard_index integer, shard_count integer,
    queues text[], priorities smallint[], kinds text[], floor_times timestamptz[], floor_ids uuid[],
    fetches integer[], kind_limits integer[], leases interval[]
) RETURNS TABLE (
    id uuid, fence bigint, kind text, queue text, priority smallint, payload text, headers text, tenant text,
    correlation_id text, attempt smallint, losses smallint, max_attempts smallint, created_at timestamptz,
    floor_time timestamptz
)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast.suspects', 0)) THEN
        RETURN;
    END IF;
    -- Each statement from here on has a snapshot taken after the lock, and so sees what its last owner did. This one
    -- reads all leases, but it is rare; an index of the suspects among them would make every claim 4 % slower.
    IF EXISTS (SELECT FROM holdfast.lease
               WHERE lease.queue = ANY (all_queues) AND lease.suspicion >= 2 AND lease.until > holdfast.now()) THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM holdfast.claim(
        as_claim, floor_margin, at_most, large_from, suspects, is_limited, shard_index, shard_count, queues, priorities,
        kinds, floor_times, floor_ids, fetches, kind_limits, leases);
END
$$;
