-- Both rows of one job, by hand: the limit for single enqueue. No wake-up, and no clock that tests can move.
-- $1 id, $2 priority, $3 max attempts, $4 queue, $5 kind, $6 tenant, $7 correlation id, $8 payload, $9 headers
WITH jobs AS (
    INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, payload, headers)
    VALUES ($1, now(), $2, $3, $4, $5, $6, $7, $8, $9)
)
INSERT INTO holdfast.ready (id, run_at, priority, queue, kind) VALUES ($1, now(), $2, $4, $5)
