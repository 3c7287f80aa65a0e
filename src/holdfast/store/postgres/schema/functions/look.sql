-- The first job of every lane that exists in these queues (sorted, each once; null for all), and in the last row, without
-- a queue, the time. A skip scan: each step is one descent of the claim index to the first row behind the lane before, so
-- it costs what exists and not what is wanted. It locks nothing; claims go on while it walks over deleted rows that a
-- pinned snapshot keeps.
CREATE OR REPLACE FUNCTION holdfast.look(queues text[], shard_index integer, shard_count integer) RETURNS TABLE (
    queue text, is_suspect boolean, priority smallint, kind text, run_at timestamptz, id uuid
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    at_queue text := CASE WHEN queues IS NULL THEN '' ELSE queues[1] END;
    at_suspect boolean := false;
    at_priority smallint := -1;
    at_kind text := '';
    reached integer;
BEGIN
    WHILE at_queue IS NOT NULL LOOP
        SELECT ready.queue, ready.is_suspect, ready.priority, ready.kind, ready.run_at, ready.id
        INTO queue, is_suspect, priority, kind, run_at, id
        FROM holdfast.ready
        WHERE (ready.queue, ready.is_suspect, ready.priority, ready.kind) > (at_queue, at_suspect, at_priority, at_kind)
        ORDER BY ready.queue, ready.is_suspect, ready.priority, ready.kind, ready.run_at, ready.id
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        reached := width_bucket(queue COLLATE "C", queues);
        IF reached = 0 OR queues[reached] <> queue THEN
            -- A lane of another queue: on to the next queue that is wanted.
            at_queue := queues[reached + 1];
            at_suspect := false;
            at_priority := -1;
            at_kind := '';
            CONTINUE;
        END IF;
        at_queue := queue;
        at_suspect := is_suspect;
        at_priority := priority;
        at_kind := kind;
        IF shard_count IS NOT NULL AND holdfast.shard_of(id, shard_count) <> shard_index THEN
            SELECT ready.run_at, ready.id INTO run_at, id
            FROM holdfast.ready
            WHERE ready.queue = at_queue AND ready.is_suspect = at_suspect AND ready.priority = at_priority
              AND ready.kind = at_kind AND holdfast.shard_of(ready.id, shard_count) = shard_index
            ORDER BY ready.run_at, ready.id
            LIMIT 1;
            CONTINUE WHEN NOT FOUND;
        END IF;
        RETURN NEXT;
    END LOOP;
    queue := NULL;
    run_at := moment;
    RETURN NEXT;
END
$$;
