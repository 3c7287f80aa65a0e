-- claim() for what workers ask for most: no suspects, and no kind that is limited to less than the batch. Half of the nodes
-- of its plan are gone, and with them a tenth of the time of a claim of one job.
CREATE OR REPLACE FUNCTION holdfast.claim_usual(
    for_holder uuid, at_most integer, shard_index integer, shard_count integer, queues text[], priorities smallint[],
    kinds text[], floor_times timestamptz[], floor_ids uuid[], fetches integer[], leases interval[]
) RETURNS TABLE (
    id uuid, fence bigint, queue text, priority smallint, kind text, run_at timestamptz, attempt smallint, losses smallint,
    max_attempts smallint, tenant text, correlation_id text, created_at timestamptz, payload text, headers text
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH lane AS MATERIALIZED (
        SELECT * FROM unnest(queues, priorities, kinds, floor_times, floor_ids, fetches, leases)
            AS lane (queue, priority, kind, floor_time, floor_id, fetch_count, lease)
    ),
    chosen AS MATERIALIZED (
        SELECT found.place, lane.lease
        FROM (SELECT * FROM lane ORDER BY lane.priority) AS lane
        CROSS JOIN LATERAL (
            SELECT ready.ctid AS place, ready.run_at, ready.id
            FROM holdfast.ready
            WHERE ready.queue = lane.queue AND ready.priority = lane.priority AND ready.kind = lane.kind
              AND (ready.run_at, ready.id) > (lane.floor_time, lane.floor_id)
              AND ready.run_at <= moment
              AND ready.losses < 2
              AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
            ORDER BY ready.run_at, ready.id
            LIMIT lane.fetch_count
            FOR UPDATE SKIP LOCKED
        ) AS found
        ORDER BY lane.priority, found.run_at, found.id
        LIMIT at_most
    ),
    taken AS (
        DELETE FROM holdfast.ready USING chosen WHERE ready.ctid = chosen.place
        RETURNING ready.id, ready.run_at, ready.priority, ready.attempt, ready.losses, ready.queue, ready.kind,
                  chosen.lease
    ),
    leased AS (
        INSERT INTO holdfast.lease AS new_lease
            (id, fence, holder, until, claimed_at, run_at, priority, attempt, losses, queue, kind)
        SELECT taken.id, nextval('holdfast.fence'), for_holder, moment + taken.lease, moment, taken.run_at,
               taken.priority, (taken.attempt + 1)::smallint, taken.losses, taken.queue, taken.kind
        FROM taken
        RETURNING new_lease.id, new_lease.fence, new_lease.run_at, new_lease.priority, new_lease.attempt,
                  new_lease.losses, new_lease.queue, new_lease.kind
    )
    SELECT leased.id, leased.fence, leased.queue, leased.priority, leased.kind, leased.run_at, leased.attempt,
           leased.losses, job.max_attempts, job.tenant, job.correlation_id, job.created_at, job.payload::text,
           job.headers::text
    FROM leased
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = leased.id LIMIT 1) AS job
    ORDER BY leased.fence;
END
$$;
