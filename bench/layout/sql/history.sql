-- Candidate D: a wide hot row updated at the claim; at its end the whole row moves to a partitioned history table.
-- What is not here is as in candidate C.

-- section: tables
CREATE TABLE holdfast.job (
    id uuid NOT NULL PRIMARY KEY,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    fence bigint,
    holder uuid,
    until timestamptz,
    claimed_at timestamptz,
    finished_at timestamptz,
    state smallint NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    attempt smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    queue text NOT NULL,
    kind text NOT NULL,
    tenant text NOT NULL,
    correlation_id text NOT NULL,
    key text,
    payload jsonb NOT NULL,
    headers jsonb,
    result jsonb,
    error jsonb
);
CREATE INDEX job_claim ON holdfast.job (queue, priority, kind, run_at, id) WHERE state = 0;
CREATE INDEX job_alone ON holdfast.job (queue) WHERE state = 0 AND losses >= 2;
CREATE INDEX job_until ON holdfast.job (until) WHERE state = -1;

CREATE TABLE holdfast.history (LIKE holdfast.job INCLUDING DEFAULTS, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE holdfast.dead_letter (LIKE holdfast.job INCLUDING DEFAULTS, PRIMARY KEY (id));

CREATE TABLE holdfast.attempt_error (
    job_id uuid NOT NULL,
    fence bigint NOT NULL,
    at timestamptz NOT NULL,
    attempt smallint NOT NULL,
    error jsonb NOT NULL,
    PRIMARY KEY (job_id, fence)
);

-- section: preload
INSERT INTO holdfast.job (id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
                          payload, headers)
SELECT id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
FROM sample.job WHERE purpose = 'deferred';
INSERT INTO holdfast.history (id, created_at, run_at, fence, claimed_at, finished_at, state, attempt, priority,
                              max_attempts, queue, kind, tenant, correlation_id, key, payload, headers)
SELECT id, created_at, run_at, nextval('holdfast.fence'), created_at, created_at, 1, 1, priority,
       max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
FROM sample.job WHERE purpose = 'finished';
INSERT INTO holdfast.dead_letter (id, created_at, run_at, fence, claimed_at, finished_at, state, attempt, priority,
                                  max_attempts, queue, kind, tenant, correlation_id, key, payload, headers, error)
SELECT id, created_at, run_at, nextval('holdfast.fence'), created_at, created_at, 2, 1, priority,
       max_attempts, queue, kind, tenant, correlation_id, key, payload, headers, '{"code": "REFUSED"}'
FROM sample.job WHERE purpose = 'dead';

-- section: finish
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
outcome AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $4::smallint[], $5::interval[], $6::text[], $7::text[])
        AS o (id, fence, state, delay, result, error)
),
gone AS (
    DELETE FROM holdfast.job AS l USING outcome AS o
    WHERE o.state <> 0 AND l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
    RETURNING l.*, o.state AS final_state, o.result AS final_result, o.error AS final_error
),
again AS (
    UPDATE holdfast.job AS l
    SET state = 0, holder = NULL, until = NULL, claimed_at = NULL, run_at = (SELECT now FROM moment) + o.delay
    FROM outcome AS o
    WHERE o.state = 0 AND l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
    RETURNING l.id, l.fence, l.attempt, o.error
),
ended AS (
    INSERT INTO holdfast.history (id, created_at, run_at, fence, claimed_at, finished_at, state, attempt, losses,
                                  priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers,
                                  result)
    SELECT id, created_at, run_at, fence, claimed_at, moment.now, final_state, attempt, losses,
           priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers, final_result::jsonb
    FROM gone CROSS JOIN moment WHERE final_state IN (1, 4)
),
dead AS (
    INSERT INTO holdfast.dead_letter (id, created_at, run_at, fence, claimed_at, finished_at, state, attempt, losses,
                                      priority, max_attempts, queue, kind, tenant, correlation_id, key, payload,
                                      headers, error)
    SELECT id, created_at, run_at, fence, claimed_at, moment.now, final_state, attempt, losses,
           priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers, final_error::jsonb
    FROM gone CROSS JOIN moment WHERE final_state IN (2, 3)
),
done AS (
    SELECT id, fence, attempt, final_error AS error FROM gone UNION ALL SELECT id, fence, attempt, error FROM again
),
errors AS (
    INSERT INTO holdfast.attempt_error (job_id, fence, at, attempt, error)
    SELECT d.id, d.fence, moment.now, d.attempt, d.error::jsonb
    FROM done AS d CROSS JOIN moment WHERE d.error IS NOT NULL
)
SELECT done.id FROM done

-- section: cancel
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
gone AS (
    DELETE FROM holdfast.job AS r USING unnest($1::uuid[]) AS o (id) WHERE r.id = ANY (ARRAY[o.id]) AND r.state = 0
    RETURNING r.*
),
ended AS (
    INSERT INTO holdfast.history (id, created_at, run_at, fence, finished_at, state, attempt, losses,
                                  priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers)
    SELECT id, created_at, run_at, nextval('holdfast.fence'), moment.now, 4, attempt, losses,
           priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
    FROM gone CROSS JOIN moment
),
asked AS (
    UPDATE holdfast.job AS l SET cancel_requested = true
    FROM unnest($1::uuid[]) AS o (id) WHERE l.id = ANY (ARRAY[o.id]) AND l.holder IS NOT NULL
    RETURNING l.id
)
SELECT gone.id FROM gone UNION ALL SELECT asked.id FROM asked

-- section: retry
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
gone AS (
    DELETE FROM holdfast.dead_letter AS d USING unnest($1::uuid[]) AS o (id) WHERE d.id = ANY (ARRAY[o.id]) RETURNING d.*
)
INSERT INTO holdfast.job (id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
                          payload, headers)
SELECT id, created_at, moment.now, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
FROM gone CROSS JOIN moment
RETURNING id

-- section: show
SELECT j.id, j.queue, j.kind, j.payload::text, j.state, j.attempt FROM holdfast.job AS j WHERE j.id = $1
UNION ALL SELECT j.id, j.queue, j.kind, j.payload::text, j.state, j.attempt FROM holdfast.history AS j WHERE j.id = $1
UNION ALL SELECT j.id, j.queue, j.kind, j.payload::text, j.state, j.attempt FROM holdfast.dead_letter AS j WHERE j.id = $1
