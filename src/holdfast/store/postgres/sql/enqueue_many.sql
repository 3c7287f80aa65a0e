-- One statement for any number of jobs without keys: either both rows of a job exist or neither does. Finally, it wakes
-- a process that sleeps on a queue which received a job due within a minute. That process looks, then waits until the
-- job is due.
-- $1 ids, $2 kinds, $3 queues, $4 priorities, $5 delays, $6 run_ats, $7 tenants, $8 correlation ids, $9 max attempts,
-- $10 payloads, $11 headers
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
given AS MATERIALIZED (
    SELECT given.*, moment.now
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::interval[], $6::timestamptz[], $7::text[],
                $8::text[], $9::smallint[], $10::text[], $11::text[])
        AS given (id, kind, queue, priority, delay, run_at, tenant, correlation_id, max_attempts, payload, headers)
    CROSS JOIN moment
),
jobs AS (
    INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, payload, headers)
    SELECT id, now, priority, max_attempts, queue, kind, tenant, correlation_id, payload::json, headers::json FROM given
),
queued AS (
    INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
    SELECT id, greatest(coalesce(run_at, now + delay), now), priority, queue, kind FROM given
)
SELECT holdfast.ring(soon.queues)
FROM (
    SELECT ARRAY(SELECT queue FROM given WHERE coalesce(run_at, now + delay, now) <= now + interval '1 minute') AS queues
) AS soon
WHERE EXISTS (
    SELECT FROM holdfast.sleeper WHERE sleeper.until > statement_timestamp() AND sleeper.queue = ANY (soon.queues)
)
