-- For jobs of which at least one has a key. Keys are taken in a fixed order, so two producers cannot deadlock. Ids come
-- back as text, because a caller's connection may decode uuids in any way.
-- $1 ids, $2 kinds, $3 queues, $4 priorities, $5 delays, $6 run_ats, $7 tenants, $8 correlation ids, $9 max attempts,
-- $10 payloads, $11 headers, $12 keys, $13 what to do if it exists, $14 windows
SELECT enqueued.id::text, enqueued.is_new, enqueued.replaced
FROM (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::interval[], $6::timestamptz[],
                         $7::text[], $8::text[], $9::smallint[], $10::text[], $11::text[], $12::text[],
                         $13::text[], $14::interval[])
        WITH ORDINALITY AS given (id, kind, queue, priority, delay, run_at, tenant, correlation_id, max_attempts,
                                  payload, headers, key, if_exists, key_window, number)
    ORDER BY given.tenant, given.kind, given.key, given.number
) AS given
CROSS JOIN LATERAL holdfast.enqueue(
    kind => given.kind, payload => given.payload::json, queue => given.queue, priority => given.priority::integer,
    delay => given.delay, run_at => given.run_at, tenant => given.tenant, key => given.key,
    correlation_id => given.correlation_id, max_attempts => given.max_attempts::integer,
    headers => given.headers::json, job_id => given.id, if_exists => given.if_exists, key_window => given.key_window
) AS enqueued
ORDER BY given.number
