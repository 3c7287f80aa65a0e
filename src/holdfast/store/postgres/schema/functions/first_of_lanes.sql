-- The first job of each lane past its floor, the first that is due or the first of all; the moment of the look, and how long
-- it took to come this far. It locks no row, so it can walk past any number of deleted rows beside the claims.
CREATE OR REPLACE FUNCTION holdfast.first_of_lanes(
    only_due boolean, shard_index integer, shard_count integer, queues text[], priorities smallint[], kinds text[],
    floor_times timestamptz[], floor_ids uuid[]
) RETURNS TABLE (
    queue text, priority smallint, kind text, run_at timestamptz, id uuid, moment timestamptz, took interval
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    began timestamptz := clock_timestamp();
    looked_at timestamptz := holdfast.now();
    latest timestamptz := CASE WHEN only_due THEN looked_at ELSE 'infinity' END;
BEGIN
    RETURN QUERY
    SELECT lane.queue, lane.priority, lane.kind, first.run_at, first.id, looked_at, clock_timestamp() - began
    FROM unnest(queues, priorities, kinds, floor_times, floor_ids) AS lane (queue, priority, kind, floor_time, floor_id)
    LEFT JOIN LATERAL (
        SELECT ready.run_at, ready.id FROM holdfast.ready
        WHERE ready.queue = lane.queue AND ready.priority = lane.priority AND ready.kind = lane.kind
          AND (ready.run_at, ready.id) > (lane.floor_time, lane.floor_id)
          AND ready.run_at <= latest
          AND ready.losses < 2
          AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
        ORDER BY ready.run_at, ready.id
        LIMIT 1
    ) AS first ON true;
END
$$;
