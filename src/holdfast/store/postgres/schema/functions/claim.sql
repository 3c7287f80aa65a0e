-- Leases due jobs: most urgent first, then first in, first out. The caller names the lanes to read and a floor in each
-- (store/floors.py), ordered by priority, so the incremental sort stops before the less urgent lanes once it has
-- enough. Only rows that the DELETE returned are leased, never rows that only the lock returned.
-- If payload and headers together have `large_from` bytes or more, the payload is left out (null), and so are large
-- headers. A claim therefore never returns hundreds of megabytes. The caller asks `contents` for as many of these jobs
-- as it can take, and releases the others.
CREATE OR REPLACE FUNCTION holdfast.claim(
    as_claim uuid, floor_margin interval, at_most integer, large_from integer, suspects boolean, is_limited boolean,
    shard_index integer, shard_count integer,
    queues text[], priorities smallint[], kinds text[], floor_times timestamptz[], floor_ids uuid[],
    fetches integer[], kind_limits integer[], leases interval[]
) RETURNS TABLE (
    -- In the order of LeasedJob. The first two belong to its Lease.
    id uuid, fence bigint, kind text, queue text, priority smallint, payload text, headers text, tenant text,
    correlation_id text, attempt smallint, losses smallint, max_attempts smallint, created_at timestamptz,
    -- Where the next claim of this lane may start, including a margin.
    floor_time timestamptz
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    hides_nothing_after timestamptz := moment - floor_margin;
    -- Microseconds of the server's clock, not of the one that tests move. A job's fence therefore rises across a
    -- failover or restore too, unless the new server's clock is behind by more than the time between the two claims. On
    -- one server it always rises.
    fence_now bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    IF is_limited THEN
        -- The lanes of a kind may together give more than is wanted of it, so this computes how much each lane gives.
        -- It is separate from the claim, which it would make a fourteenth slower.
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
        -- A claim that waited this long for a locked table has lost its client, and jobs it leased would never start.
        -- A lock_timeout would do the same, but setting it for each claim costs more.
        LIMIT CASE WHEN clock_timestamp() < statement_timestamp() + interval '5 seconds' THEN at_most ELSE 0 END
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
           -- What is large as stored is not even decompressed.
           CASE WHEN pg_column_size(job.payload) + coalesce(pg_column_size(job.headers), 0) < large_from
                 AND octet_length(job.payload::text) + coalesce(octet_length(job.headers::text), 0) < large_from
                THEN job.payload::text END,
           CASE WHEN pg_column_size(job.headers) < large_from AND octet_length(job.headers::text) < large_from
                THEN job.headers::text END,
           job.tenant, job.correlation_id, leased.attempt, leased.losses, job.max_attempts, job.created_at,
           CASE WHEN floor_margin IS NOT NULL THEN least(leased.run_at, hides_nothing_after) END
    FROM leased
    -- In the order of `chosen`, which nested loops keep, and no other plan is possible. A sort would cost a one-job
    -- claim 5 us. Not in a CTE (decision 3).
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = leased.id LIMIT 1) AS job;
END
$$;
