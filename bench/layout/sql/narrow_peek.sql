-- Variant of A: look over the lanes without locking, then lock only as many rows of each lane as will be taken.
-- The base locks (and writes WAL for) up to a whole batch in each lane and takes one batch of them all.

-- section: claim
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
seen AS MATERIALIZED (
    SELECT lane.queue, lane.priority, lane.kind, lane.floor_run_at, lane.floor_id
    FROM (
        SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::timestamptz[], $5::uuid[], $6::integer[])
            AS given (queue, priority, kind, floor_run_at, floor_id, at_most)
        ORDER BY given.priority
    ) AS lane
    CROSS JOIN LATERAL (
        SELECT r.run_at, r.id
        FROM holdfast.ready AS r
        WHERE r.queue = lane.queue AND r.priority = lane.priority AND r.kind = lane.kind
          AND (r.run_at, r.id) > (lane.floor_run_at, lane.floor_id)
          AND r.run_at <= (SELECT now FROM moment)
          AND r.losses < 2
        ORDER BY r.run_at, r.id
        LIMIT lane.at_most
    ) AS found
    ORDER BY lane.priority, found.run_at, found.id
    LIMIT $7
),
share AS MATERIALIZED (
    SELECT queue, priority, kind, floor_run_at, floor_id, count(*) AS wanted
    FROM seen GROUP BY queue, priority, kind, floor_run_at, floor_id
),
due AS MATERIALIZED (
    SELECT found.place
    FROM share
    CROSS JOIN LATERAL (
        SELECT r.ctid AS place, r.run_at, r.id
        FROM holdfast.ready AS r
        WHERE r.queue = share.queue AND r.priority = share.priority AND r.kind = share.kind
          AND (r.run_at, r.id) > (share.floor_run_at, share.floor_id)
          AND r.run_at <= (SELECT now FROM moment)
          AND r.losses < 2
        ORDER BY r.run_at, r.id
        LIMIT share.wanted
        FOR UPDATE SKIP LOCKED
    ) AS found
    ORDER BY share.priority, found.run_at, found.id
),
taken AS (
    DELETE FROM holdfast.ready AS r USING due WHERE r.ctid = due.place
    RETURNING r.id, r.run_at, r.priority, r.attempt, r.losses, r.queue, r.kind
),
leased AS (
    INSERT INTO holdfast.lease (id, fence, holder, until, claimed_at, run_at, priority, attempt, losses, queue, kind)
    SELECT t.id, nextval('holdfast.fence'), $8, moment.now + $9, moment.now, t.run_at, t.priority,
           (t.attempt + 1)::smallint, t.losses, t.queue, t.kind
    FROM taken AS t CROSS JOIN moment
    RETURNING id, fence, run_at, priority, attempt, losses, queue, kind
)
SELECT l.id, l.fence, l.queue, l.kind, l.priority, l.run_at, l.attempt, l.losses, j.max_attempts, j.tenant,
       j.correlation_id, j.key, j.created_at, j.payload::text, j.headers::text
FROM leased AS l
CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = l.id LIMIT 1) AS j
