-- enqueue_many_keyed.sql for a single job. With arrays, the server takes a sixth longer.
-- $1 id, $2 kind, $3 queue, $4 priority, $5 delay, $6 run_at, $7 tenant, $8 correlation id, $9 max attempts, $10 payload,
-- $11 headers, $12 key, $13 what to do if it exists, $14 window
SELECT id::text, is_new, replaced
FROM holdfast.enqueue(
    job_id => $1::uuid, kind => $2::text, queue => $3::text, priority => $4::integer, delay => $5::interval,
    run_at => $6::timestamptz, tenant => $7::text, correlation_id => $8::text, max_attempts => $9::integer,
    payload => $10::text::json, headers => $11::text::json, key => $12::text, if_exists => $13::text,
    key_window => $14::interval
)
