-- enqueue_many.sql for a single job. Arrays and the call of holdfast.now take a quarter of that statement's time, so
-- this one has neither: the clock is read inline. Keep in sync with schema/functions/now.sql.
-- $1 id, $2 kind, $3 queue, $4 priority, $5 delay, $6 run_at, $7 tenant, $8 correlation id, $9 max attempts, $10 payload,
-- $11 headers
WITH moment AS MATERIALIZED (
    SELECT (SELECT coalesce(frozen_at, clock_timestamp() + moved) FROM holdfast.clock) AS now
),
jobs AS (
    INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, payload, headers)
    SELECT $1::uuid, now, $4::smallint, $9::smallint, $3::text, $2::text, $7::text, $8::text, $10::text::json,
           $11::text::json
    FROM moment
),
queued AS (
    INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
    SELECT $1::uuid, greatest(coalesce($6::timestamptz, now + $5::interval), now), $4::smallint, $3::text, $2::text
    FROM moment
)
SELECT holdfast.ring(ARRAY[$3::text])
WHERE EXISTS (SELECT FROM holdfast.sleeper WHERE sleeper.until > statement_timestamp() AND sleeper.queue = $3::text) AND (
    SELECT coalesce($6::timestamptz, now + $5::interval, now) <= now + interval '1 minute' FROM moment
)
