-- Who waits for which job to become final, so that nobody is notified while nobody does. In real time and unlogged, for the
-- reasons that 0006_wake.sql gives for sleepers. A row counts until the wait's timeout, so that nothing needs to be renewed;
-- one whose process died costs a single notification at most, because its job becomes final once.
CREATE UNLOGGED TABLE holdfast.waiter (
    job_id uuid NOT NULL,
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (job_id, holder)
);
-- For "does anybody wait?": rows of waits that ended are dead and mostly lie before now, where that look does not go.
CREATE INDEX waiter_until ON holdfast.waiter (until);

-- Called by whoever may have made these jobs final, in the same statement: sql/finish.sql and its like, and the function
-- below. Not a trigger with a transition table, which is a crash of PostgreSQL 18 (docs/decisions/0008-waiting.md). A job
-- that lives on rings for nobody. Each holder has a channel of its own, with a twin in wake/final.py, and hears of its jobs
-- once per statement; 200 ids fit into a notification.
CREATE FUNCTION holdfast.ring_waiters(ids uuid[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp()) THEN
        PERFORM pg_notify('holdfast_waiter_' || replace(part.holder::text, '-', ''), string_agg(part.id::text, ','))
        FROM (
            -- OFFSET 0 keeps each of these a search by key: as a join, planned while the table is empty, it would read
            -- all of it. MATERIALIZED, because few of the jobs have somebody who waits.
            WITH waited AS MATERIALIZED (
                SELECT waiter.holder, given.id FROM unnest(ids) AS given (id)
                CROSS JOIN LATERAL (
                    SELECT waiter.holder FROM holdfast.waiter WHERE waiter.job_id = given.id OFFSET 0
                ) AS waiter
            )
            SELECT waited.holder, waited.id, (row_number() OVER (PARTITION BY waited.holder) - 1) / 200 AS number
            FROM waited
            WHERE NOT EXISTS (SELECT FROM holdfast.lease WHERE lease.id = waited.id OFFSET 0)
              AND NOT EXISTS (SELECT FROM holdfast.ready WHERE ready.id = waited.id OFFSET 0)
        ) AS part
        GROUP BY part.holder, part.number;
    END IF;
END
$$;

-- As in 0002_verbs.sql, and it rings.
CREATE OR REPLACE FUNCTION holdfast.finish_in_transaction(
    job_id uuid, with_fence bigint, with_holder uuid, with_result text
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
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
    PERFORM holdfast.ring_waiters(ARRAY[job_id]);
END
$$;

-- Which of these jobs are neither ready nor running: final, or not there. Two probes a job, because waiters ask again and
-- again; a function for the reason that 0004_rare_verbs.sql gives, with OFFSET 0 for the one above.
CREATE FUNCTION holdfast.not_live(ids uuid[]) RETURNS TABLE (id uuid)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT given.id FROM unnest(ids) AS given (id)
    WHERE NOT EXISTS (SELECT FROM holdfast.lease WHERE lease.id = given.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM holdfast.ready WHERE ready.id = given.id OFFSET 0);
END
$$;

-- Jobs as a person reads them. A job is in exactly one of ready, lease, finished and dead_letter; every lookup is by id.
CREATE FUNCTION holdfast.show(ids uuid[]) RETURNS TABLE (
    id uuid, kind text, queue text, priority smallint, tenant text, correlation_id text, key text, max_attempts smallint,
    created_at timestamptz, payload text, headers text, state text, attempt smallint, losses smallint, run_at timestamptz,
    started_at timestamptz, finished_at timestamptz, fence bigint, holder uuid, lease_until timestamptz,
    cancel_requested boolean, result text, progress text, errors text[]
)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT given.id,
           coalesce(job.kind, dead.kind), coalesce(job.queue, dead.queue), coalesce(job.priority, dead.priority),
           coalesce(job.tenant, dead.tenant), coalesce(job.correlation_id, dead.correlation_id),
           coalesce(job.key, dead.key), coalesce(job.max_attempts, dead.max_attempts),
           coalesce(job.created_at, dead.created_at),
           coalesce(job.payload, dead.payload)::text, coalesce(job.headers, dead.headers)::text,
           CASE WHEN ready.id IS NOT NULL THEN 'ready' WHEN lease.id IS NOT NULL THEN 'running'
                ELSE coalesce(finished.state, dead.state)::text END,
           coalesce(ready.attempt, lease.attempt, finished.attempt, dead.attempt),
           coalesce(ready.losses, lease.losses, finished.losses, dead.losses),
           coalesce(ready.run_at, lease.run_at),
           coalesce(lease.claimed_at, finished.started_at, dead.started_at),
           coalesce(finished.finished_at, dead.finished_at),
           coalesce(lease.fence, finished.fence, dead.fence),
           lease.holder, lease.until, coalesce(lease.cancel_requested, false),
           finished.result::text, progress.value::text,
           ARRAY(SELECT attempt_error.error::text FROM holdfast.attempt_error
                 WHERE attempt_error.job_id = given.id ORDER BY attempt_error.number)
    FROM unnest(ids) AS given (id)
    LEFT JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = given.id LIMIT 1) AS job ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.ready WHERE ready.id = given.id LIMIT 1) AS ready ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.lease WHERE lease.id = given.id LIMIT 1) AS lease ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.finished WHERE finished.id = given.id LIMIT 1) AS finished ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.dead_letter WHERE dead_letter.id = given.id LIMIT 1) AS dead ON true
    LEFT JOIN LATERAL (SELECT * FROM holdfast.progress WHERE progress.job_id = given.id LIMIT 1) AS progress ON true
    WHERE ready.id IS NOT NULL OR lease.id IS NOT NULL OR finished.id IS NOT NULL OR dead.id IS NOT NULL
    ORDER BY given.id DESC;
END
$$;
