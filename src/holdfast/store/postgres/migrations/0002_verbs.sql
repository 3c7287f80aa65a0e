-- The hot verbs are functions because a function's SET pins its plans: a generic plan made while a queue was empty would
-- otherwise scan it in sequence when it is full, and session settings do not survive PgBouncer. For the same reason a
-- row is sought with `id = ANY (ARRAY[given.id])`: a plain join may be turned round, and then reads the whole index.

-- The shard of a job, the same in every language and release: the first 32 bits of the MD5 of its id's text, modulo the
-- number of shards. Ids from elsewhere may be random in any of their parts or in none, so none is used as it is.
CREATE FUNCTION holdfast.shard_of(id uuid, shards integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (('x' || left(md5(id::text), 8))::bit(32)::bigint % shards)::integer
$$;

-- Lanes come with a floor (see lanes.py) and in order of priority, so that the incremental sort stops before the less
-- urgent lanes once it has enough. What is leased is what the DELETE returned, never what the lock alone returned.
CREATE FUNCTION holdfast.claim(
    for_holder uuid, at_most integer, suspects boolean, at_most_candidates integer, limited boolean,
    shard_index integer, shard_count integer, queues text[], priorities smallint[], kinds text[], floor_times timestamptz[], floor_ids uuid[], fetches integer[],
    kind_limits integer[], leases interval[]
) RETURNS TABLE (
    id uuid, fence bigint, until timestamptz, queue text, priority smallint, kind text, run_at timestamptz,
    attempt smallint, losses smallint, max_attempts smallint, tenant text, correlation_id text, created_at timestamptz,
    payload text, headers text
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
        SELECT * FROM unnest(queues, priorities, kinds, floor_times, floor_ids, fetches, kind_limits, leases)
            AS lane (queue, priority, kind, floor_time, floor_id, fetch_count, kind_limit, lease)
    ),
    usual AS MATERIALIZED (
        SELECT found.place, lane.priority, found.run_at, found.id, lane.kind, lane.kind_limit, lane.lease
        FROM (SELECT * FROM lane WHERE NOT suspects ORDER BY lane.priority) AS lane
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
        LIMIT at_most_candidates
    ),
    suspect AS MATERIALIZED (
        SELECT found.place, lane.priority, found.run_at, found.id, lane.kind, lane.kind_limit, lane.lease
        FROM (SELECT * FROM lane WHERE suspects ORDER BY lane.priority) AS lane
        CROSS JOIN LATERAL (
            SELECT ready.ctid AS place, ready.run_at, ready.id
            FROM holdfast.ready
            WHERE ready.queue = lane.queue AND ready.priority = lane.priority AND ready.kind = lane.kind
              AND ready.run_at <= moment
              AND ready.losses >= 2
              AND (shard_count IS NULL OR holdfast.shard_of(ready.id, shard_count) = shard_index)
            ORDER BY ready.run_at, ready.id
            LIMIT lane.fetch_count
            FOR UPDATE SKIP LOCKED
        ) AS found
        ORDER BY lane.priority, found.run_at, found.id
        LIMIT at_most_candidates
    ),
    candidate AS (SELECT * FROM usual UNION ALL SELECT * FROM suspect),
    within_limit AS (
        SELECT numbered.place, numbered.lease
        FROM (
            SELECT candidate.*, row_number() OVER (
                PARTITION BY candidate.kind ORDER BY candidate.priority, candidate.run_at, candidate.id) AS nth_of_kind
            FROM candidate WHERE limited
        ) AS numbered
        WHERE numbered.nth_of_kind <= numbered.kind_limit
        ORDER BY numbered.priority, numbered.run_at, numbered.id
        LIMIT at_most
    ),
    chosen AS MATERIALIZED (
        SELECT candidate.place, candidate.lease FROM candidate WHERE NOT limited
        UNION ALL
        SELECT within_limit.place, within_limit.lease FROM within_limit
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
        RETURNING new_lease.id, new_lease.fence, new_lease.until, new_lease.run_at, new_lease.priority,
                  new_lease.attempt, new_lease.losses, new_lease.queue, new_lease.kind
    )
    SELECT leased.id, leased.fence, leased.until, leased.queue, leased.priority, leased.kind, leased.run_at,
           leased.attempt, leased.losses, job.max_attempts, job.tenant, job.correlation_id, job.created_at,
           job.payload::text, job.headers::text
    FROM leased
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = leased.id LIMIT 1) AS job
    ORDER BY leased.fence;
END
$$;

-- Locks first, skipping what a transaction holds to finish its own job: one such job must not stall all others. The
-- DELETE then goes by id, not by place: a renewal may have moved the row after this statement's snapshot was taken,
-- and only a search by key follows it there.
CREATE FUNCTION holdfast.finish(
    ids uuid[], fences bigint[], holders uuid[], events text[], states text[], delays interval[], moments timestamptz[],
    errors text[], results text[], kept_errors integer
) RETURNS TABLE (id uuid, fence bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    moment_text text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(ids, fences, holders, events, states, delays, moments, errors, results)
            AS given (id, fence, holder, event, state, delay, at, error, result)
    ),
    held AS MATERIALIZED (
        SELECT given.id, given.fence, given.event, given.state, given.delay, given.at, given.error, given.result
        FROM given
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.lease
            WHERE lease.id = given.id AND lease.fence = given.fence AND lease.holder = given.holder
            FOR UPDATE SKIP LOCKED
        ) AS lease
    ),
    gone AS (
        DELETE FROM holdfast.lease USING held WHERE lease.id = ANY (ARRAY[held.id]) AND lease.fence = held.fence
        RETURNING lease.id, lease.fence, lease.claimed_at, lease.run_at, lease.priority, lease.attempt, lease.losses,
                  lease.queue, lease.kind, held.event, held.delay, held.at, held.result,
                  -- A job that a person asked to cancel is not made ready again, whatever ended its attempt.
                  CASE WHEN lease.cancel_requested AND held.state = 'ready' THEN 'canceled' ELSE held.state END AS state,
                  CASE WHEN lease.cancel_requested AND held.state = 'ready' AND held.error IS NULL
                       THEN '{"code": "CANCELED", "type": "Cancel", "message": "canceled by request", "traceback": ""}'
                       ELSE held.error END AS error
    ),
    again AS (
        INSERT INTO holdfast.ready (id, run_at, priority, attempt, losses, queue, kind)
        SELECT gone.id,
               CASE WHEN gone.event = 'release' THEN gone.run_at
                    ELSE greatest(coalesce(gone.at, moment + gone.delay), moment) END,
               gone.priority,
               (gone.attempt - CASE WHEN gone.event IN ('release', 'snooze') THEN 1 ELSE 0 END)::smallint,
               gone.losses, gone.queue, gone.kind
        FROM gone WHERE gone.state = 'ready'
    ),
    ended AS (
        INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state, result)
        SELECT gone.id, gone.fence, gone.claimed_at, moment, gone.attempt, gone.losses,
               gone.state::holdfast.job_state, gone.result::json
        FROM gone WHERE gone.state IN ('succeeded', 'canceled')
    ),
    dead AS (
        INSERT INTO holdfast.dead_letter (id, fence, created_at, started_at, finished_at, priority, max_attempts, attempt,
            losses, state, queue, kind, tenant, correlation_id, key, payload, headers)
        SELECT gone.id, gone.fence, job.created_at, gone.claimed_at, moment, gone.priority, job.max_attempts,
               gone.attempt, gone.losses, gone.state::holdfast.job_state, gone.queue, gone.kind, job.tenant,
               job.correlation_id, job.key, job.payload, job.headers
        FROM gone
        CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = gone.id LIMIT 1) AS job
        WHERE gone.state IN ('failed', 'dead')
    ),
    noted AS (
        INSERT INTO holdfast.attempt_error (job_id, error)
        SELECT gone.id, gone.error::jsonb || jsonb_build_object('attempt', gone.attempt, 'at', moment_text)
        FROM gone WHERE gone.error IS NOT NULL
    ),
    trimmed AS (
        -- This statement does not see the error that it adds, so the newest but one less stay.
        DELETE FROM holdfast.attempt_error USING gone
        WHERE gone.error IS NOT NULL AND attempt_error.job_id = ANY (ARRAY[gone.id])
          AND attempt_error.number <= (SELECT old.number FROM holdfast.attempt_error AS old WHERE old.job_id = gone.id
                                       ORDER BY old.number DESC OFFSET kept_errors - 1 LIMIT 1)
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), gone.state::holdfast.job_state, count(*), gone.queue, gone.kind
        FROM gone WHERE gone.state <> 'ready'
        GROUP BY 1, 2, 4, 5
    ),
    rung AS MATERIALIZED (
        -- What others may run at once. For a retry with a delay the worker comes back by itself.
        SELECT CASE WHEN 'ready' = ANY (states) THEN holdfast.ring(ARRAY(
            SELECT gone.queue FROM gone
            WHERE gone.state = 'ready' AND (gone.event = 'release' OR coalesce(gone.at, moment + gone.delay) <= moment)
        )) END
    )
    SELECT gone.id, gone.fence FROM gone CROSS JOIN rung;
END
$$;

-- The same for what happens most, success without a result, and without locking first, which would write a tenth more.
-- Only a handler's own transaction could hold such a lease for long; then the lock timeout sends the caller to finish().
CREATE FUNCTION holdfast.finish_succeeded(ids uuid[], fences bigint[], holders uuid[])
RETURNS TABLE (id uuid, fence bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM holdfast.lease USING unnest(ids, fences, holders) AS given (id, fence, holder)
        WHERE lease.id = ANY (ARRAY[given.id]) AND lease.fence = given.fence AND lease.holder = given.holder
        RETURNING lease.id, lease.fence, lease.claimed_at, lease.attempt, lease.losses, lease.queue, lease.kind
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), 'succeeded'::holdfast.job_state, count(*), gone.queue, gone.kind
        FROM gone
        GROUP BY 1, 4, 5
    )
    INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state)
    SELECT gone.id, gone.fence, gone.claimed_at, moment, gone.attempt, gone.losses, 'succeeded'::holdfast.job_state
    FROM gone
    RETURNING finished.id, finished.fence;
END
$$;

-- Never waits: a lease that a transaction holds to finish its job is left alone.
CREATE FUNCTION holdfast.renew(
    ids uuid[], fences bigint[], holders uuid[], extensions interval[], notes text[]
) RETURNS TABLE (id uuid, fence bigint, cancel_requested boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(ids, fences, holders, extensions, notes) AS given (id, fence, holder, extension, note)
    ),
    held AS MATERIALIZED (
        SELECT given.id, given.fence, given.extension, given.note
        FROM given
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.lease
            WHERE lease.id = given.id AND lease.fence = given.fence AND lease.holder = given.holder
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS lease
    ),
    renewed AS (
        UPDATE holdfast.lease SET until = moment + held.extension
        FROM held WHERE lease.id = ANY (ARRAY[held.id]) AND lease.fence = held.fence
        RETURNING lease.id, lease.fence, lease.cancel_requested, held.note
    ),
    noted AS (
        INSERT INTO holdfast.progress AS old (job_id, fence, at, value)
        SELECT renewed.id, renewed.fence, moment, renewed.note::json FROM renewed WHERE renewed.note IS NOT NULL
        ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = excluded.at, value = excluded.value
        WHERE old.fence <= excluded.fence
    )
    SELECT renewed.id, renewed.fence, renewed.cancel_requested FROM renewed;
END
$$;

-- For a handler's own transaction. Raises when the lease was lost, so that such a transaction cannot commit.
CREATE FUNCTION holdfast.finish_in_transaction(job_id uuid, with_fence bigint, with_holder uuid, with_result text)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    held holdfast.lease;
BEGIN
    DELETE FROM holdfast.lease
    WHERE lease.id = job_id AND lease.fence = with_fence AND lease.holder = with_holder
    RETURNING lease.* INTO held;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease of job % with fence % was lost; roll back', job_id, with_fence
            USING ERRCODE = 'HF001';
    END IF;
    -- A client that vanishes now would keep the lease locked for as long as TCP takes to notice, up to hours.
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '5min', true);
    END IF;
    INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state, result)
    VALUES (held.id, held.fence, held.claimed_at, holdfast.now(), held.attempt, held.losses, 'succeeded',
            with_result::json);
    INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
    VALUES (holdfast.day_of(held.id), 'succeeded', 1, held.queue, held.kind);
END
$$;
