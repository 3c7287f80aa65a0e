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

-- Triggers and not a line in each verb: whatever makes a job final rings, the verbs of today, of old workers and of later
-- releases alike (docs/decisions/0008-waiting.md has the price). Each holder has a channel of its own, with a twin in
-- wake/final.py, and hears of its jobs once per statement; 200 ids fit into a notification.
CREATE FUNCTION holdfast.ring_waiters() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp()) THEN
        PERFORM pg_notify('holdfast_waiter_' || replace(part.holder::text, '-', ''), string_agg(part.id::text, ','))
        FROM (
            SELECT waiter.holder, final.id, (row_number() OVER (PARTITION BY waiter.holder) - 1) / 200 AS number
            FROM final
            -- OFFSET 0 keeps this a search by key: as a join, planned while the table is empty, it would read all of it.
            CROSS JOIN LATERAL (
                SELECT waiter.holder FROM holdfast.waiter WHERE waiter.job_id = final.id OFFSET 0
            ) AS waiter
        ) AS part
        GROUP BY part.holder, part.number;
    END IF;
    RETURN NULL;
END
$$;
-- Adding a trigger waits for transactions that have finished a job, and whoever wants to finish one waits behind it. A
-- handler that is slow to commit must not stall all others: better to give up and be run again.
SET LOCAL lock_timeout = '5s';
-- On a partitioned table a trigger for each statement is the parent's alone: partitions come and go without it.
CREATE TRIGGER ring_waiters AFTER INSERT ON holdfast.finished
    REFERENCING NEW TABLE AS final FOR EACH STATEMENT EXECUTE FUNCTION holdfast.ring_waiters();
CREATE TRIGGER ring_waiters AFTER INSERT ON holdfast.dead_letter
    REFERENCING NEW TABLE AS final FOR EACH STATEMENT EXECUTE FUNCTION holdfast.ring_waiters();

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
