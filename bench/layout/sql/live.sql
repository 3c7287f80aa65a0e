-- Candidate B: the immutable job row, and one narrow live row that goes from ready to leased in place.
-- No lookup by id may imply the condition of a partial index, or the planner reads that index instead of the primary key.

-- section: tables
CREATE TABLE holdfast.job (
    id uuid NOT NULL PRIMARY KEY,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    tenant text NOT NULL,
    correlation_id text NOT NULL,
    key text,
    payload jsonb NOT NULL,
    headers jsonb
) PARTITION BY RANGE (id);

CREATE TABLE holdfast.live (
    id uuid NOT NULL PRIMARY KEY,
    run_at timestamptz NOT NULL,
    fence bigint,
    holder uuid,
    until timestamptz,
    claimed_at timestamptz,
    priority smallint NOT NULL,
    attempt smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    queue text NOT NULL,
    kind text NOT NULL
);
CREATE INDEX live_claim ON holdfast.live (queue, priority, kind, run_at, id) WHERE fence IS NULL;
CREATE INDEX live_alone ON holdfast.live (queue) WHERE fence IS NULL AND losses >= 2;
CREATE INDEX live_until ON holdfast.live (until) WHERE until IS NOT NULL;

CREATE TABLE holdfast.finished (
    id uuid NOT NULL PRIMARY KEY,
    fence bigint NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    state smallint NOT NULL,
    attempt smallint NOT NULL,
    result jsonb
) PARTITION BY RANGE (id);

CREATE TABLE holdfast.dead_letter (
    id uuid NOT NULL PRIMARY KEY,
    fence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    state smallint NOT NULL,
    attempt smallint NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    tenant text NOT NULL,
    correlation_id text NOT NULL,
    key text,
    payload jsonb NOT NULL,
    headers jsonb,
    error jsonb
);

CREATE TABLE holdfast.attempt_error (
    job_id uuid NOT NULL,
    fence bigint NOT NULL,
    at timestamptz NOT NULL,
    attempt smallint NOT NULL,
    error jsonb NOT NULL,
    PRIMARY KEY (job_id, fence)
);

-- section: preload
INSERT INTO holdfast.job (id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers)
SELECT id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
FROM sample.job;
INSERT INTO holdfast.live (id, run_at, priority, queue, kind)
SELECT id, run_at, priority, queue, kind FROM sample.job WHERE purpose = 'deferred';
INSERT INTO holdfast.finished (id, fence, started_at, finished_at, state, attempt)
SELECT id, nextval('holdfast.fence'), created_at, created_at, 1, 1 FROM sample.job WHERE purpose = 'finished';
INSERT INTO holdfast.dead_letter
SELECT id, nextval('holdfast.fence'), created_at, run_at, created_at, created_at, 2, 1, priority, max_attempts,
       queue, kind, tenant, correlation_id, key, payload, headers, '{"code": "REFUSED"}'
FROM sample.job WHERE purpose = 'dead';

-- section: enqueue
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
given AS MATERIALIZED (
    SELECT g.id, g.queue, g.kind, g.priority, greatest(g.run_at, moment.now) AS run_at, g.payload, g.headers,
           g.tenant, g.correlation_id, g.key, g.max_attempts, moment.now AS created_at
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::timestamptz[], $6::text[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::smallint[])
         AS g (id, queue, kind, priority, run_at, payload, headers, tenant, correlation_id, key, max_attempts)
    CROSS JOIN moment
),
jobs AS (
    INSERT INTO holdfast.job (id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id,
                              key, payload, headers)
    SELECT id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
           payload::jsonb, headers::jsonb
    FROM given
)
INSERT INTO holdfast.live (id, run_at, priority, queue, kind)
SELECT id, run_at, priority, queue, kind FROM given

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
        FROM holdfast.live AS r
        WHERE r.queue = lane.queue AND r.priority = lane.priority AND r.kind = lane.kind
          AND (r.run_at, r.id) > (lane.floor_run_at, lane.floor_id)
          AND r.run_at <= (SELECT now FROM moment)
          AND r.fence IS NULL AND r.losses < 2
        ORDER BY r.run_at, r.id
        LIMIT lane.at_most
        FOR UPDATE SKIP LOCKED
    ) AS found
    ORDER BY lane.priority, found.run_at, found.id
    LIMIT $7
),
leased AS (
    UPDATE holdfast.live AS r
    SET fence = nextval('holdfast.fence'), holder = $8, until = (SELECT now FROM moment) + $9,
        claimed_at = (SELECT now FROM moment), attempt = r.attempt + 1
    FROM due WHERE r.ctid = due.place
    RETURNING r.id, r.fence, r.run_at, r.priority, r.attempt, r.losses, r.queue, r.kind
)
SELECT l.id, l.fence, l.queue, l.kind, l.priority, l.run_at, l.attempt, l.losses, j.max_attempts, j.tenant,
       j.correlation_id, j.key, j.created_at, j.payload::text, j.headers::text
FROM leased AS l
CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = l.id LIMIT 1) AS j

-- section: finish
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
outcome AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $4::smallint[], $5::interval[], $6::text[], $7::text[])
        AS o (id, fence, state, delay, result, error)
),
gone AS (
    DELETE FROM holdfast.live AS l USING outcome AS o
    WHERE o.state <> 0 AND l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
    RETURNING l.id, l.fence, l.claimed_at, l.priority, l.attempt, l.queue, l.kind, o.state, o.result, o.error
),
again AS (
    UPDATE holdfast.live AS l
    SET fence = NULL, holder = NULL, until = NULL, claimed_at = NULL, run_at = (SELECT now FROM moment) + o.delay
    FROM outcome AS o
    WHERE o.state = 0 AND l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
    RETURNING l.id, o.fence, l.attempt, o.error
),
ended AS (
    INSERT INTO holdfast.finished (id, fence, started_at, finished_at, state, attempt, result)
    SELECT g.id, g.fence, g.claimed_at, moment.now, g.state, g.attempt, g.result::jsonb
    FROM gone AS g CROSS JOIN moment WHERE g.state IN (1, 4)
),
dead AS (
    INSERT INTO holdfast.dead_letter (id, fence, created_at, run_at, started_at, finished_at, state, attempt, priority,
                                      max_attempts, queue, kind, tenant, correlation_id, key, payload, headers, error)
    SELECT g.id, g.fence, j.created_at, j.run_at, g.claimed_at, moment.now, g.state, g.attempt, g.priority,
           j.max_attempts, g.queue, g.kind, j.tenant, j.correlation_id, j.key, j.payload, j.headers, g.error::jsonb
    FROM gone AS g CROSS JOIN moment
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = g.id LIMIT 1) AS j
    WHERE g.state IN (2, 3)
),
done AS (
    SELECT id, fence, attempt, error FROM gone UNION ALL SELECT id, fence, attempt, error FROM again
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
        SELECT l.id FROM holdfast.live AS l
        WHERE l.id = o.id AND l.fence = o.fence AND l.holder = $3
        FOR UPDATE SKIP LOCKED
    ) AS found
)
UPDATE holdfast.live AS l SET until = (SELECT now FROM moment) + $4
FROM held WHERE l.id = ANY (ARRAY[held.id])
RETURNING l.id, l.cancel_requested

-- section: release
UPDATE holdfast.live AS l
SET fence = NULL, holder = NULL, until = NULL, claimed_at = NULL, attempt = l.attempt - 1
FROM unnest($1::uuid[], $2::bigint[]) AS o (id, fence)
WHERE l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
RETURNING l.id

-- section: rescue
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
expired AS MATERIALIZED (
    SELECT l.ctid AS place, l.losses FROM holdfast.live AS l
    WHERE l.until < (SELECT now FROM moment)
    ORDER BY l.until LIMIT $1 FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM holdfast.live AS l USING expired WHERE l.ctid = expired.place AND expired.losses + 1 >= 3
    RETURNING l.*
),
again AS (
    UPDATE holdfast.live AS l
    SET fence = NULL, holder = NULL, until = NULL, claimed_at = NULL, losses = l.losses + 1
    FROM expired WHERE l.ctid = expired.place AND expired.losses + 1 < 3
    RETURNING l.id
),
dead AS (
    INSERT INTO holdfast.dead_letter (id, fence, created_at, run_at, started_at, finished_at, state, attempt, priority,
                                      max_attempts, queue, kind, tenant, correlation_id, key, payload, headers, error)
    SELECT g.id, g.fence, j.created_at, j.run_at, g.claimed_at, moment.now, 3, g.attempt, g.priority,
           j.max_attempts, g.queue, g.kind, j.tenant, j.correlation_id, j.key, j.payload, j.headers,
           '{"code": "LEASE_LOST"}'
    FROM gone AS g CROSS JOIN moment
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = g.id LIMIT 1) AS j
)
SELECT gone.id FROM gone UNION ALL SELECT again.id FROM again

-- section: cancel
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
gone AS (
    DELETE FROM holdfast.live AS r USING unnest($1::uuid[]) AS o (id) WHERE r.id = ANY (ARRAY[o.id]) AND r.fence IS NULL
    RETURNING r.id, r.attempt
),
ended AS (
    INSERT INTO holdfast.finished (id, fence, finished_at, state, attempt)
    SELECT g.id, nextval('holdfast.fence'), moment.now, 4, g.attempt FROM gone AS g CROSS JOIN moment
),
asked AS (
    UPDATE holdfast.live AS l SET cancel_requested = true
    FROM unnest($1::uuid[]) AS o (id) WHERE l.id = ANY (ARRAY[o.id]) AND l.fence IS NOT NULL
    RETURNING l.id
)
SELECT gone.id FROM gone UNION ALL SELECT asked.id FROM asked

-- section: retry
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
gone AS (
    DELETE FROM holdfast.dead_letter AS d USING unnest($1::uuid[]) AS o (id) WHERE d.id = ANY (ARRAY[o.id]) RETURNING d.*
),
jobs AS (
    INSERT INTO holdfast.job (id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id,
                              key, payload, headers)
    SELECT id, created_at, run_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload, headers
    FROM gone ON CONFLICT DO NOTHING
)
INSERT INTO holdfast.live (id, run_at, priority, queue, kind)
SELECT g.id, moment.now, g.priority, g.queue, g.kind FROM gone AS g CROSS JOIN moment
RETURNING id

-- section: show
SELECT coalesce(j.id, d.id), coalesce(j.queue, d.queue), coalesce(j.kind, d.kind), coalesce(j.payload, d.payload)::text,
       CASE WHEN l.fence IS NOT NULL THEN -1 WHEN l.id IS NOT NULL THEN 0 ELSE coalesce(d.state, f.state) END::smallint,
       coalesce(l.attempt, d.attempt, f.attempt)
FROM (SELECT $1::uuid AS id) AS asked
LEFT JOIN holdfast.job AS j ON j.id = asked.id
LEFT JOIN holdfast.live AS l ON l.id = asked.id
LEFT JOIN holdfast.finished AS f ON f.id = asked.id
LEFT JOIN holdfast.dead_letter AS d ON d.id = asked.id
