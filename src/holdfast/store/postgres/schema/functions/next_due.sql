-- The first entry of each lane, one index probe each; null if there is none.
CREATE OR REPLACE FUNCTION holdfast.next_due(
    queues text[], kinds text[], suspects boolean, shard_index integer, shard_count integer
) RETURNS interval
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    earliest timestamptz;
BEGIN
    IF suspects THEN
        SELECT min(first.run_at) INTO earliest
        FROM unnest(queues) AS wanted_queue (queue)
        CROSS JOIN generate_series(0, 9) AS wanted_priority (priority)
        CROSS JOIN unnest(kinds) AS wanted_kind (kind)
        CROSS JOIN LATERAL (
            SELECT ready.run_at FROM holdfast.ready
            WHERE ready.queue = wanted_queue.queue AND ready.priority = wanted_priority.priority
              AND ready.kind = wanted_kind.kind AND ready.losses >= 2
              AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
            ORDER BY ready.run_at, ready.id
            LIMIT 1
        ) AS first;
    ELSE
        SELECT min(first.run_at) INTO earliest
        FROM unnest(queues) AS wanted_queue (queue)
        CROSS JOIN generate_series(0, 9) AS wanted_priority (priority)
        CROSS JOIN unnest(kinds) AS wanted_kind (kind)
        CROSS JOIN LATERAL (
            SELECT ready.run_at FROM holdfast.ready
            WHERE ready.queue = wanted_queue.queue AND ready.priority = wanted_priority.priority
              AND ready.kind = wanted_kind.kind AND ready.losses < 2
              AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
            ORDER BY ready.run_at, ready.id
            LIMIT 1
        ) AS first;
    END IF;
    RETURN earliest - holdfast.now();
END
$$;
