-- Returns the first job of every lane in these queues (sorted, without duplicates; null for all). The last row has no
-- queue and gives the time. It is a skip scan: each step descends the claim index once, to the first row after the
-- previous lane, or from a lane of an unwanted queue to the next wanted queue. The cost depends on the lanes that
-- exist, not on the number of queues requested. It locks nothing, and claims continue while it walks over deleted rows
-- that a pinned snapshot keeps. It is a recursive query, because a loop takes twice as long.
CREATE OR REPLACE FUNCTION holdfast.look(queues text[], shard_index integer, shard_count integer) RETURNS TABLE (
    queue text, is_suspect boolean, priority smallint, kind text, run_at timestamptz, id uuid
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH RECURSIVE lane AS (
        SELECT '' COLLATE "C" AS queue, false AS is_suspect, -1::smallint AS priority, '' COLLATE "C" AS kind,
               NULL::timestamptz AS run_at, NULL::uuid AS id,
               queues IS NULL AS is_wanted, queues[1] COLLATE "C" AS next_queue
        UNION ALL
        SELECT found.queue, found.is_suspect, found.priority, found.kind, found.run_at, found.id,
               queues IS NULL OR coalesce(queues[passed.number] = found.queue, false), queues[passed.number + 1]
        FROM lane
        CROSS JOIN LATERAL (
            SELECT ready.queue, ready.is_suspect, ready.priority, ready.kind, ready.run_at, ready.id
            FROM holdfast.ready
            WHERE (ready.queue, ready.is_suspect, ready.priority, ready.kind)
                > (CASE WHEN lane.is_wanted THEN lane.queue ELSE lane.next_queue END,
                   lane.is_wanted AND lane.is_suspect,
                   CASE WHEN lane.is_wanted THEN lane.priority ELSE -1 END,
                   CASE WHEN lane.is_wanted THEN lane.kind ELSE '' END)
            ORDER BY ready.queue, ready.is_suspect, ready.priority, ready.kind, ready.run_at, ready.id
            LIMIT 1
        ) AS found
        CROSS JOIN LATERAL (SELECT width_bucket(found.queue COLLATE "C", queues) AS number OFFSET 0) AS passed
    )
    SELECT lane.queue, lane.is_suspect, lane.priority, lane.kind, first.run_at, first.id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT lane.run_at, lane.id WHERE shard_count IS NULL
        UNION ALL
        (SELECT ready.run_at, ready.id FROM holdfast.ready
         WHERE shard_count IS NOT NULL AND ready.queue = lane.queue AND ready.is_suspect = lane.is_suspect
           AND ready.priority = lane.priority AND ready.kind = lane.kind
           AND holdfast.shard_of(ready.id, shard_count) = shard_index
         ORDER BY ready.run_at, ready.id LIMIT 1)
    ) AS first
    WHERE lane.is_wanted AND lane.id IS NOT NULL
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, moment, NULL;
END
$$;
