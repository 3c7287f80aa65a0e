-- The public way to publish from any language, inside the caller's own transaction:
--     SELECT * FROM holdfast.publish('invoice.paid', '{"invoice": 17}');
-- Returns one row per matching subscription. With a key, a subscription that already has a job with that key and tenant
-- gets no other, and is_new is false.
-- A type is matched by itself, by `*`, and by `x.*` for each of its prefixes. All patterns that can match are therefore
-- known, and each is looked up in the index, however many subscriptions there are. Keys are taken in the same order as
-- when enqueuing many jobs, so the two cannot deadlock.
CREATE OR REPLACE FUNCTION holdfast.publish(
    event_type text,
    payload json,
    tenant text DEFAULT '',
    key text DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    headers json DEFAULT NULL,
    event_id uuid DEFAULT NULL
) RETURNS TABLE (subscription text, id uuid, is_new boolean) LANGUAGE plpgsql
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    event uuid := coalesce(event_id, holdfast.new_id());
    words text[] := string_to_array(event_type, '.');
    carried json;
BEGIN
    IF event_type IS NULL OR octet_length(event_type) > 255 OR event_type !~ '^([^.*]+[.])*[^.*]+$' THEN
        RAISE EXCEPTION 'event_type: give words with dots between them, such as invoice.paid, of at most 255 bytes'
            USING ERRCODE = 'HF002';
    ELSIF starts_with(event_type, 'holdfast' || '.') THEN
        RAISE EXCEPTION 'event_type: only the store publishes types that begin with holdfast' USING ERRCODE = 'HF002';
    ELSIF payload IS NULL OR octet_length(payload::text) > 10485760 THEN
        RAISE EXCEPTION 'payload: give JSON of at most 10 MB' USING ERRCODE = 'HF002';
    ELSIF json_typeof(headers) <> 'object' OR octet_length(headers::text) > 16384 THEN
        RAISE EXCEPTION 'headers: give a JSON object of at most 16 KB' USING ERRCODE = 'HF002';
    ELSIF key = '' OR length(key) > 500 OR length(tenant) > 200 OR length(correlation_id) > 200 THEN
        RAISE EXCEPTION 'key, tenant or correlation_id: empty or too long' USING ERRCODE = 'HF002';
    END IF;
    -- As text, because jsonb would change the order of the headers and the spelling of numbers. The name is in two
    -- parts, because the first part would otherwise be replaced by the configured schema.
    carried := concat(
        coalesce(left(rtrim(headers::text, E' \t\n\r'), -1), '{'),
        CASE WHEN EXISTS (SELECT FROM json_object_keys(headers)) THEN ',' END,
        '"holdfast', '.event":{"id":"', event, '","type":', to_json(event_type), ',"published_at":"',
        to_char(holdfast.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '"}}'
    )::json;
    RETURN QUERY
    SELECT listening.name, enqueued.id, enqueued.is_new
    FROM (
        SELECT found.name, found.queue, found.priority, found.max_attempts
        FROM holdfast.subscription AS found
        WHERE found.pattern = ANY (ARRAY(
            SELECT array_to_string(words[:count] || '*'::text, '.') FROM generate_series(0, cardinality(words) - 1) AS count
        ) || event_type)
        ORDER BY found.name COLLATE "default"
    ) AS listening
    CROSS JOIN LATERAL holdfast.enqueue(
        kind => listening.name, payload => payload, queue => listening.queue, priority => listening.priority::integer,
        tenant => tenant, key => key, correlation_id => coalesce(nullif(correlation_id, ''), event::text),
        max_attempts => listening.max_attempts::integer, headers => carried
    ) AS enqueued;
END
$$;
