-- Candidate C: one wide row per job, updated in place; finished rows stay until retention deletes them.
-- A leased row is one with a holder: no lookup by id may imply the condition of a partial index, or the planner reads
-- that index instead of the primary key. State: -1 leased, 0 ready, 1 succeeded, 2 failed, 3 dead, 4 canceled.

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
CREATE INDEX job_finished ON holdfast.job (finished_at) WHERE state IN (1, 4);
CREATE INDEX job_dead ON holdfast.job (finished_at) WHERE state IN (2, 3);

CREATE TABLE holdfast.attempt_error (
    job_id uuid NOT NULL,
    fence bigint NOT NULL,
    at timestamptz NOT NULL,
    attempt smallint NOT NULL,
    error jsonb NOT NULL,
    PRIMARY KEY (job_id, fence)
);

-- section: preload
INSERT INTO holdfast.job (id, created_at, run_at, fence, claimed_at, finished_at, state, attempt, priority, max_attempts,
                          queue, kind, tenant, correlation_id, key, payload, headers, error)
SELECT id, created_at, run_at,
       CASE WHEN purpose <> 'deferred' THEN nextval('holdfast.fence') END,
       CASE WHEN purpose <> 'deferred' THEN created_at END, CASE WHEN purpose <> 'deferred' THEN created_at END,
       CASE purpose WHEN 'deferred' THEN 0 WHEN 'dead' THEN 2 ELSE 1 END,
       CASE WHEN purpose <> 'deferred' THEN 1 ELSE 0 END,
       priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers,
       CASE WHEN purpose = 'dead' THEN '{"code": "REFUSED"}'::jsonb END
FROM sample.job;

-- section: enqueue
INSERT INTO holdfast.job (id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id,
                          key, payload, headers)
SELECT g.id, moment.now, greatest(g.run_at, moment.now), g.priority, g.max_attempts, g.queue, g.kind, g.tenant,
       g.correlation_id, g.key, g.payload::jsonb, g.headers::jsonb
FROM (SELECT holdfast.now() AS now OFFSET 0) AS moment
CROSS JOIN unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::timestamptz[], $6::text[], $7::text[],
                  $8::text[], $9::text[], $10::text[], $11::smallint[])
     AS g (id, queue, kind, priority, run_at, payload, headers, tenant, correlation_id, key, max_attempts)

-- section: claim
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
due AS MATERIALIZED (
    SELECT found.place
    FROM (
        SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::timestamptz[], $5::uuid[], $6::integer[])
            AS given (queue, priority, kind, floor_run_at, floor_id, at_most)
        ORDER BY given.priority
    ) AS lane
    CROSS JOIN LATERAL (
        SELECT r.ctid AS place, r.run_at, r.id
        FROM holdfast.job AS r
        WHERE r.queue = lane.queue AND r.priority = lane.priority AND r.kind = lane.kind
          AND (r.run_at, r.id) > (lane.floor_run_at, lane.floor_id)
          AND r.run_at <= (SELECT now FROM moment)
          AND r.state = 0 AND r.losses < 2
        ORDER BY r.run_at, r.id
        LIMIT lane.at_most
        FOR UPDATE SKIP LOCKED
    ) AS found
    ORDER BY lane.priority, found.run_at, found.id
    LIMIT $7
)
UPDATE holdfast.job AS r
SET state = -1, fence = nextval('holdfast.fence'), holder = $8, until = (SELECT now FROM moment) + $9,
    claimed_at = (SELECT now FROM moment), attempt = r.attempt + 1
FROM due WHERE r.ctid = due.place
RETURNING r.id, r.fence, r.queue, r.kind, r.priority, r.run_at, r.attempt, r.losses, r.max_attempts, r.tenant,
          r.correlation_id, r.key, r.created_at, r.payload::text, r.headers::text

-- section: finish
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
done AS (
    UPDATE holdfast.job AS l
    SET state = o.state, until = NULL, holder = NULL,
        run_at = CASE WHEN o.state = 0 THEN (SELECT now FROM moment) + o.delay ELSE l.run_at END,
        finished_at = CASE WHEN o.state <> 0 THEN (SELECT now FROM moment) END,
        result = o.result::jsonb, error = o.error::jsonb
    FROM unnest($1::uuid[], $2::bigint[], $4::smallint[], $5::interval[], $6::text[], $7::text[])
         AS o (id, fence, state, delay, result, error)
    WHERE l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
    RETURNING l.id, l.fence, l.attempt, o.error
),
errors AS (
    INSERT INTO holdfast.attempt_error (job_id, fence, at, attempt, error)
    SELECT d.id, d.fence, moment.now, d.attempt, d.error::jsonb
    FROM done AS d CROSS JOIN moment WHERE d.error IS NOT NULL
)
SELECT done.id FROM done

-- section: renew
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
held AS MATERIALIZED (
    SELECT found.id
    FROM unnest($1::uuid[], $2::bigint[]) AS o (id, fence)
    CROSS JOIN LATERAL (
        SELECT l.id FROM holdfast.job AS l
        WHERE l.id = o.id AND l.fence = o.fence AND l.holder = $3
        FOR UPDATE SKIP LOCKED
    ) AS found
)
UPDATE holdfast.job AS l SET until = (SELECT now FROM moment) + $4
FROM held WHERE l.id = ANY (ARRAY[held.id])
RETURNING l.id, l.cancel_requested

-- section: release
UPDATE holdfast.job AS l SET state = 0, holder = NULL, until = NULL, claimed_at = NULL, attempt = l.attempt - 1
FROM unnest($1::uuid[], $2::bigint[]) AS o (id, fence)
WHERE l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
RETURNING l.id

-- section: rescue
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
expired AS MATERIALIZED (
    SELECT l.ctid AS place FROM holdfast.job AS l
    WHERE l.state = -1 AND l.until < (SELECT now FROM moment)
    ORDER BY l.until LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE holdfast.job AS l
SET state = CASE WHEN l.losses + 1 < 3 THEN 0 ELSE 3 END, holder = NULL, until = NULL, losses = l.losses + 1,
    finished_at = CASE WHEN l.losses + 1 >= 3 THEN (SELECT now FROM moment) END
FROM expired WHERE l.ctid = expired.place
RETURNING l.id

-- section: cancel
UPDATE holdfast.job AS r
SET state = CASE WHEN r.state = 0 THEN 4 ELSE r.state END, cancel_requested = true,
    finished_at = CASE WHEN r.state = 0 THEN moment.now END
FROM (SELECT holdfast.now() AS now OFFSET 0) AS moment CROSS JOIN unnest($1::uuid[]) AS o (id)
WHERE r.id = ANY (ARRAY[o.id]) AND r.state IN (-1, 0)
RETURNING r.id

-- section: retry
UPDATE holdfast.job AS r
SET state = 0, attempt = 0, losses = 0, run_at = moment.now, finished_at = NULL, error = NULL
FROM (SELECT holdfast.now() AS now OFFSET 0) AS moment CROSS JOIN unnest($1::uuid[]) AS o (id)
WHERE r.id = ANY (ARRAY[o.id]) AND r.state IN (2, 3)
RETURNING r.id

-- section: show
SELECT j.id, j.queue, j.kind, j.payload::text, j.state, j.attempt FROM holdfast.job AS j WHERE j.id = $1
