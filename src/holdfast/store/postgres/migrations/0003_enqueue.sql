-- A UUIDv7 for producers that bring no id of their own.
CREATE FUNCTION holdfast.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
            || substr(random_part, 14, 3) || substr(random_part, 17, 16))::uuid
    FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS random_part) AS random
$$;

-- The public way to enqueue from any language, inside the caller's own transaction:
--     SELECT id FROM holdfast.enqueue('invoice.send', '{"invoice": 17}');
-- With a key, a kept job of the same tenant and kind is returned instead and is_new is false. A producer that meets a key
-- whose first holder has not committed yet waits for it: after ON CONFLICT DO NOTHING the same snapshot may not see the
-- winner, so this needs a loop and cannot be one statement.
CREATE FUNCTION holdfast.enqueue(
    kind text,
    payload json,
    queue text DEFAULT 'default',
    priority integer DEFAULT 5,
    delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    tenant text DEFAULT '',
    key text DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    headers json DEFAULT NULL,
    job_id uuid DEFAULT NULL,
    OUT id uuid,
    OUT is_new boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    IF kind IS NULL OR kind = '' OR length(kind) > 200 THEN
        RAISE EXCEPTION 'kind: give 1 to 200 characters' USING ERRCODE = 'HF002';
    ELSIF queue IS NULL OR queue = '' OR length(queue) > 100 THEN
        RAISE EXCEPTION 'queue: give 1 to 100 characters' USING ERRCODE = 'HF002';
    ELSIF priority IS NULL OR priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority: % is not a number from 0 (most urgent) to 9', priority USING ERRCODE = 'HF002';
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts: % is not a number from 1 to 1000', max_attempts USING ERRCODE = 'HF002';
    ELSIF delay NOT BETWEEN interval '0' AND interval '36500 days' THEN
        RAISE EXCEPTION 'delay: % is negative or longer than a hundred years', delay USING ERRCODE = 'HF002';
    ELSIF delay IS NOT NULL AND run_at IS NOT NULL THEN
        RAISE EXCEPTION 'give a delay or a run_at, not both' USING ERRCODE = 'HF002';
    ELSIF run_at >= timestamptz '9999-01-01 00:00:00+00' THEN
        -- Also infinity, from which nothing can be subtracted: every worker's next_due would fail.
        RAISE EXCEPTION 'run_at: % is not before the year 9999', run_at USING ERRCODE = 'HF002';
    ELSIF payload IS NULL OR octet_length(payload::text) > 10485760 THEN
        RAISE EXCEPTION 'payload: give JSON of at most 10 MB' USING ERRCODE = 'HF002';
    ELSIF key = '' OR length(key) > 500 OR length(tenant) > 200 OR length(correlation_id) > 200 THEN
        RAISE EXCEPTION 'key, tenant or correlation_id: empty or too long' USING ERRCODE = 'HF002';
    ELSIF octet_length(key) + octet_length(coalesce(tenant, '')) + octet_length(kind) > 2500 THEN
        -- They make one entry of an index, which cannot be longer than 2,704 bytes.
        RAISE EXCEPTION 'key: with its tenant and kind over the limit of 2,500 bytes' USING ERRCODE = 'HF002';
    END IF;
    id := coalesce(job_id, holdfast.new_id());
    is_new := true;
    IF key IS NOT NULL THEN
        LOOP
            INSERT INTO holdfast.key AS kept (job_id, tenant, kind, key)
            VALUES (id, coalesce(tenant, ''), kind, key) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT kept.job_id INTO id FROM holdfast.key AS kept
            WHERE kept.tenant = coalesce(tenant, '') AND kept.kind = kind AND kept.key = key;
            IF FOUND THEN
                is_new := false;
                RETURN;
            END IF;
            id := coalesce(job_id, holdfast.new_id());
        END LOOP;
    END IF;
    INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key, payload,
                              headers)
    VALUES (id, moment, priority, max_attempts, queue, kind, coalesce(tenant, ''),
            coalesce(nullif(correlation_id, ''), id::text), key, payload, headers);
    INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
    VALUES (id, greatest(coalesce(run_at, moment + delay), moment), priority, queue, kind);
    IF coalesce(run_at, moment + delay, moment) <= moment + interval '1 minute' THEN
        PERFORM pg_notify('holdfast_' || md5('holdfast.wake'), queue)
        FROM holdfast.sleeper WHERE sleeper.queue = queue AND sleeper.until > statement_timestamp() LIMIT 1;
    END IF;
END
$$;
