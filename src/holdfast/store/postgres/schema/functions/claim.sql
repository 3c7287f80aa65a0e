-- Leases due jobs: most urgent first, then first in, first out. The caller names the lanes to read and a floor in each
-- (store/floors.py), ordered by priority, so that the incremental sort stops before the less urgent lanes once it has
-- enough. What is leased is what the DELETE returned, never what the lock alone returned.
-- A payload of at least `large_from` bytes is left out (null), so that no claim is answered with hundreds of megabytes: the
-- caller asks `payloads` for as many of these as it can take, and releases the others.
CREATE OR REPLACE FUNCTION holdfast.claim(
    as_claim uuid, floor_margin interval, at_most integer, large_from integer, suspects boolean, is_limited boolean,
    shard_index integer, shard_count integer,
    queues text[], priorities smallint[], kinds text[], floor_times timestamptz[], floor_ids uuid[],
    fetches integer[], kind_limits integer[], leases interval[]
) RETURNS TABLE (
    -- In the order of LeasedJob, the first two being those of its Lease.
    id uuid, fence bigint, kind text, queue text, priority smallint, payload text, headers text, tenant text,
    correlation_id text, attempt smallint, losses smallint, max_attempts smallint, created_at timestamptz,
    -- With a margin: where the next claim of this lane may start.
    floor_time timestamptz
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
-- A claim whose client has given it up must not lease jobs when a table is free again, long after anybody looks for them.
SET lock_timeout = '5s'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    hides_nothing_after timestamptz := moment - floor_margin;
    -- Microseconds of the server's clock, not of the one that tests move: a job's fence rises across a failover or restore as
    -- well, unless the new server's clock is behind by more than the time between the two claims. On one server it always does.
    fence_now bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    IF is_limited THEN
        -- A kind of which less is wanted than several of its lanes may give: how much each lane gives then. Apart from the
        -- claim, which would take a fourteenth longer for it.
        SELECT array_agg(kept.number::integer ORDER BY kept.place) INTO fetches
        FROM (
            SELECT ranked.place, count(ranked.id) FILTER (WHERE ranked.nth_of_kind <= ranked.kind_limit) AS number
            FROM (
                SELECT lane.place, lane.kind_limit, found.id, row_number() OVER (
                    PARTITION BY lane.kind ORDER BY found.id IS NULL, lane.priority, found.run_at, found.id) AS nth_of_kind
                FROM unnest(queues, priorities, kinds, floor_times, floor_ids, fetches, kind_limits) WITH ORDINALITY
                    AS lane (queue, priority, kind, floor_time, floor_id, fetch_count, kind_limit, place)
                LEFT JOIN LATERAL (
                    SELECT ready.run_at, ready.id
                    FROM holdfast.ready
                    WHERE ready.queue = lane.queue AND ready.is_suspect = suspects AND ready.priority = lane.priority
                      AND ready.kind = lane.kind
                      AND (ready.run_at, ready.id) > (lane.floor_time, lane.floor_id)
                      AND ready.run_at <= moment
                      AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
                    ORDER BY ready.run_at, ready.id
                    LIMIT lane.fetch_count
                    FOR UPDATE SKIP LOCKED
                ) AS found ON true
            ) AS ranked
            GROUP BY ranked.place
        ) AS kept;
    END IF;
    RETURN QUERY
    WITH chosen AS MATERIALIZED (
        SELECT found.place, lane.lease
        FROM (SELECT * FROM unnest(queues, priorities, kinds, floor_times, floor_ids, fetches, leases)
                  AS lane (queue, priority, kind, floor_time, floor_id, fetch_count, lease)
              ORDER BY lane.priority) AS lane
        CROSS JOIN LATERAL (
            SELECT ready.ctid AS place, ready.run_at, ready.id
            FROM holdfast.ready
            WHERE ready.queue = lane.queue AND ready.is_suspect = suspects AND ready.priority = lane.priority
              AND ready.kind = lane.kind
              AND (ready.run_at, ready.id) > (lane.floor_time, lane.floor_id)
              AND ready.run_at <= moment
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
        RETURNING ready.id, ready.run_at, ready.fence, ready.priority, ready.attempt, ready.losses, ready.suspicion,
                  ready.queue, ready.kind, chosen.lease
    ),
    leased AS (
        INSERT INTO holdfast.lease AS new_lease
            (id, claim, fence, until, claimed_at, run_at, priority, attempt, losses, suspicion, queue, kind)
        SELECT taken.id, as_claim, greatest(fence_now, taken.fence + 1), moment + taken.lease, moment, taken.run_at,
               taken.priority, (taken.attempt + 1)::smallint, taken.losses, taken.suspicion, taken.queue, taken.kind
        FROM taken
        RETURNING new_lease.id, new_lease.fence, new_lease.run_at, new_lease.priority, new_lease.attempt,
                  new_lease.losses, new_lease.queue, new_lease.kind
    )
    SELECT leased.id, leased.fence, leased.kind, leased.queue, leased.priority,
           CASE WHEN octet_length(job.payload_text) < large_from THEN job.payload_text END, job.headers::text, job.tenant,
           job.correlation_id, leased.attempt, leased.losses, job.max_attempts, job.created_at,
           CASE WHEN floor_margin IS NOT NULL THEN least(leased.run_at, hides_nothing_after) END
    FROM leased
    CROSS JOIN LATERAL (
        -- What is stored large is not even decompressed.
        SELECT job.*, CASE WHEN pg_column_size(job.payload) < large_from THEN job.payload::text END AS payload_text
        FROM holdfast.job WHERE job.id = leased.id LIMIT 1
    ) AS job
    ORDER BY leased.priority, leased.run_at, leased.id;
END
$$;
