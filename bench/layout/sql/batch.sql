-- Candidate "batch": a claim writes one row per lane instead of a lease per job. The row is never changed; what is left of it
-- is a number in a narrow row beside it. The fence of a job is the batch's number and its place in the batch, so that a
-- finish finds the batch without an index over jobs. A worker renews one row, its own.
DROP TABLE holdfast.lease;
CREATE SEQUENCE holdfast.batch_number;

CREATE TABLE holdfast.holder (
    holder uuid NOT NULL PRIMARY KEY,
    seen_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- attempts and losses are null while all are 0, which they are for most. Arrays stay in the row as far as a page holds them,
-- and are not compressed: ids are random.
CREATE TABLE holdfast.batch (
    number bigint NOT NULL PRIMARY KEY,
    holder uuid NOT NULL,
    claimed_at timestamptz NOT NULL,
    lease interval NOT NULL,
    priority smallint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    ids uuid[] NOT NULL,
    run_ats timestamptz[] NOT NULL,
    attempts smallint[],
    losses smallint[]
) WITH (toast_tuple_target = 8160);
ALTER TABLE holdfast.batch ALTER ids SET STORAGE EXTERNAL, ALTER run_ats SET STORAGE EXTERNAL;

CREATE TABLE holdfast.batch_left (
    number bigint NOT NULL PRIMARY KEY,
    holder uuid NOT NULL,
    left_count integer NOT NULL
) WITH (fillfactor = 50);

-- Jobs that left their batch otherwise than by success: their fence is worth nothing although the batch is still there.
CREATE TABLE holdfast.departed (
    number bigint NOT NULL,
    place integer NOT NULL,
    PRIMARY KEY (number, place)
);
CREATE TABLE holdfast.cancel_request (id uuid NOT NULL PRIMARY KEY);

-- The primary key of finished tells whether a job was finished already: a second finish fails, and the caller then asks job by
-- job. Other finishes of the same batch wait for this one, for as long as a statement takes; a handler's own transaction
-- must not count down here, but leave that to a sweep.
CREATE OR REPLACE FUNCTION holdfast.finish_succeeded(ids uuid[], fences bigint[], holders uuid[])
RETURNS TABLE (id uuid, fence bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    given record;
    found_batch holdfast.batch;
    is_closed boolean;
    has_departed boolean;
    done integer;
BEGIN
    FOR given IN
        SELECT part.number, part.holder, array_agg(part.id) AS ids, array_agg(part.fence) AS fences, count(*)::integer AS amount
        FROM (SELECT each.id, each.fence, each.fence >> 16 AS number, each.holder
              FROM unnest(ids, fences, holders) AS each (id, fence, holder)) AS part
        GROUP BY part.number, part.holder
    LOOP
        DELETE FROM holdfast.batch_left
        WHERE batch_left.number = given.number AND batch_left.holder = given.holder AND batch_left.left_count = given.amount;
        is_closed := FOUND;
        IF is_closed THEN
            DELETE FROM holdfast.batch WHERE batch.number = given.number RETURNING batch.* INTO found_batch;
        ELSE
            UPDATE holdfast.batch_left SET left_count = batch_left.left_count - given.amount
            WHERE batch_left.number = given.number AND batch_left.holder = given.holder;
            CONTINUE WHEN NOT FOUND;
            SELECT batch.* INTO found_batch FROM holdfast.batch WHERE batch.number = given.number;
        END IF;
        has_departed := EXISTS (SELECT FROM holdfast.departed WHERE departed.number = given.number);
        RETURN QUERY
        INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state)
        SELECT each.id, each.fence, found_batch.claimed_at, moment,
               (coalesce(found_batch.attempts[each.fence & 65535], 0) + 1)::smallint,
               coalesce(found_batch.losses[each.fence & 65535], 0::smallint), 'succeeded'::holdfast.job_state
        FROM unnest(given.ids, given.fences) AS each (id, fence)
        WHERE found_batch.ids[each.fence & 65535] = each.id
          AND (NOT has_departed OR NOT EXISTS (
              SELECT FROM holdfast.departed
              WHERE departed.number = given.number AND departed.place = (each.fence & 65535)::integer))
        RETURNING finished.id, finished.fence;
        GET DIAGNOSTICS done = ROW_COUNT;
        IF done <> given.amount THEN
            RAISE EXCEPTION 'some of these were not held' USING ERRCODE = 'HF003';
        END IF;
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(each.id), 'succeeded', count(*), found_batch.queue, found_batch.kind
        FROM unnest(given.ids) AS each (id) GROUP BY 1;
        IF is_closed AND has_departed THEN
            DELETE FROM holdfast.departed WHERE departed.number = given.number;
        END IF;
    END LOOP;
END
$$;

-- A retry: back to ready, out of the batch.
CREATE FUNCTION holdfast.depart(ids uuid[], fences bigint[], holders uuid[], delays interval[]) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    moment timestamptz := holdfast.now();
    done integer;
BEGIN
    WITH given AS MATERIALIZED (
        SELECT each.id, each.fence >> 16 AS number, (each.fence & 65535)::integer AS place, each.holder, each.delay
        FROM unnest(ids, fences, holders, delays) AS each (id, fence, holder, delay)
    ),
    counted AS (
        UPDATE holdfast.batch_left SET left_count = batch_left.left_count - part.amount
        FROM (SELECT given.number, given.holder, count(*)::integer AS amount FROM given GROUP BY 1, 2) AS part
        WHERE batch_left.number = ANY (ARRAY[part.number]) AND batch_left.holder = part.holder
        RETURNING batch_left.number
    ),
    gone AS (
        INSERT INTO holdfast.departed (number, place)
        SELECT given.number, given.place FROM given JOIN counted USING (number)
        JOIN holdfast.batch ON batch.number = given.number AND batch.ids[given.place] = given.id
        RETURNING departed.number, departed.place
    )
    INSERT INTO holdfast.ready (id, run_at, priority, attempt, losses, queue, kind)
    SELECT given.id, moment + given.delay, batch.priority, (coalesce(batch.attempts[given.place], 0) + 1)::smallint,
           coalesce(batch.losses[given.place], 0::smallint), batch.queue, batch.kind
    FROM gone JOIN given USING (number, place) JOIN holdfast.batch USING (number);
    GET DIAGNOSTICS done = ROW_COUNT;
    RETURN done;
END
$$;

-- Renewal of everything that a worker holds.
CREATE FUNCTION holdfast.beat(of_holder uuid) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.holder VALUES (of_holder, holdfast.now())
    ON CONFLICT (holder) DO UPDATE SET seen_at = excluded.seen_at;
    RETURN QUERY SELECT cancel_request.id FROM holdfast.cancel_request;
END
$$;

-- Looks at the workers, and at batches only of those that were not seen for the length of the lease. Whoever is in the batch
-- and neither finished nor departed was lost. (No limit of losses here, and no dead letters.)
CREATE FUNCTION holdfast.rescue_batches() RETURNS SETOF uuid LANGUAGE plpgsql SET enable_hashjoin = off AS $$
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT batch.* FROM holdfast.batch JOIN holdfast.batch_left USING (number)
        JOIN holdfast.holder ON holder.holder = batch.holder AND holder.seen_at + batch.lease <= moment
        FOR UPDATE OF batch_left SKIP LOCKED
    ),
    closed AS (DELETE FROM holdfast.batch_left USING gone WHERE batch_left.number = gone.number),
    removed AS (DELETE FROM holdfast.batch USING gone WHERE batch.number = gone.number),
    forgotten AS (DELETE FROM holdfast.departed USING gone WHERE departed.number = gone.number)
    INSERT INTO holdfast.ready (id, run_at, priority, attempt, losses, queue, kind)
    SELECT each.id, moment, gone.priority, (coalesce(gone.attempts[each.place], 0) + 1)::smallint,
           (coalesce(gone.losses[each.place], 0) + 1)::smallint, gone.queue, gone.kind
    FROM gone CROSS JOIN LATERAL unnest(gone.ids) WITH ORDINALITY AS each (id, place)
    WHERE NOT EXISTS (SELECT FROM holdfast.finished WHERE finished.id = each.id)
      AND NOT EXISTS (SELECT FROM holdfast.departed WHERE departed.number = gone.number AND departed.place = each.place)
    RETURNING ready.id;
END
$$;
