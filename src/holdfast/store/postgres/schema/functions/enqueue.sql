-- The public way to enqueue from any language, inside the caller's own transaction:
--     SELECT id FROM holdfast.enqueue('invoice.send', '{"invoice": 17}');
-- With a key, a kept job of the same tenant and kind is returned instead, and is_new is false.
-- `if_exists => 'keep_live'` does so only while that job is ready or running. `if_exists => 'replace'` puts the new
-- work in place of a job that has not started. `key_window` holds the key for that long, whatever happens to the job.
-- If another producer has inserted the key but not committed, this one waits. After ON CONFLICT DO NOTHING, the same
-- snapshot may not see the winner, so this needs a loop and cannot be a single statement.
-- New parameters come last, so old calls keep their meaning.
CREATE OR REPLACE FUNCTION holdfast.enqueue(
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
    if_exists text DEFAULT 'keep',
    key_window interval DEFAULT NULL,
    OUT id uuid,
    OUT is_new boolean,
    OUT replaced boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    moment timestamptz := holdfast.now();
    is_patient boolean;
    tries integer := 0;
    answer text;
    kept_id uuid;
    kept_fence bigint := 0;
    kept_suspicion smallint;
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
        -- Includes infinity, from which nothing can be subtracted: the look of every worker would fail.
        RAISE EXCEPTION 'run_at: % is not before the year 9999', run_at USING ERRCODE = 'HF002';
    ELSIF payload IS NULL OR octet_length(payload::text) > 10485760 THEN
        RAISE EXCEPTION 'payload: give JSON of at most 10 MB' USING ERRCODE = 'HF002';
    ELSIF octet_length(headers::text) > 18432
       OR (octet_length(headers::text) > 16384 AND headers -> ('holdfast' || '.event') IS NULL) THEN
        -- Publishing adds the header of the event to those of the caller. Its name is in two parts, because the first
        -- part would otherwise be replaced by the configured schema.
        RAISE EXCEPTION 'headers: give JSON of at most 16 KB' USING ERRCODE = 'HF002';
    ELSIF key = '' OR length(key) > 500 OR length(tenant) > 200 OR length(correlation_id) > 200 THEN
        RAISE EXCEPTION 'key, tenant or correlation_id: empty or too long' USING ERRCODE = 'HF002';
    ELSIF octet_length(key) + octet_length(coalesce(tenant, '')) + octet_length(kind) > 2500 THEN
        -- Together they form one index entry, which cannot be longer than 2,704 bytes.
        RAISE EXCEPTION 'key: with its tenant and kind over the limit of 2,500 bytes' USING ERRCODE = 'HF002';
    ELSIF if_exists IS NULL OR if_exists NOT IN ('keep', 'keep_live', 'replace') THEN
        RAISE EXCEPTION 'if_exists: % is not known; use keep, keep_live or replace', coalesce(quote_literal(if_exists), 'NULL')
            USING ERRCODE = 'HF002';
    ELSIF key IS NULL AND (if_exists <> 'keep' OR key_window IS NOT NULL) THEN
        RAISE EXCEPTION 'if_exists and key_window need a key' USING ERRCODE = 'HF002';
    ELSIF if_exists <> 'keep' AND key_window IS NOT NULL THEN
        RAISE EXCEPTION 'give if_exists => % or a key_window, not both', quote_literal(if_exists) USING ERRCODE = 'HF002';
    ELSIF key_window <= interval '0' OR key_window > interval '36500 days' THEN
        RAISE EXCEPTION 'key_window: % is not more than zero, or longer than a hundred years', key_window
            USING ERRCODE = 'HF002';
    END IF;
    id := coalesce(job_id, holdfast.new_id());
    is_new := true;
    replaced := false;
    IF key IS NOT NULL THEN
        -- The session's lock_timeout is kept. Without one, another producer's transaction is waited for this long.
        is_patient := current_setting('lock_timeout') = '0';
        IF is_patient THEN
            PERFORM set_config('lock_timeout', '10s', true);
        END IF;
        LOOP
            INSERT INTO holdfast.key AS kept (job_id, tenant, kind, key, until)
            VALUES (id, coalesce(tenant, ''), kind, key, moment + key_window) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT met.answer, met.kept_id, coalesce(met.kept_fence, 0), met.kept_suspicion
            INTO answer, kept_id, kept_fence, kept_suspicion
            FROM holdfast.meet_key(coalesce(tenant, ''), kind, key, id, if_exists, key_window) AS met;
            EXIT WHEN answer IS NOT NULL;
            tries := tries + 1;
            IF tries >= 100 THEN
                RAISE EXCEPTION 'the key % keeps changing hands; try again', quote_literal(key) USING ERRCODE = '40001';
            END IF;
        END LOOP;
        IF is_patient THEN
            PERFORM set_config('lock_timeout', '0', true);
        END IF;
        IF answer IN ('keep', 'replace') THEN
            id := kept_id;
            is_new := false;
            replaced := answer = 'replace';
        END IF;
        IF answer = 'keep' THEN
            RETURN;
        ELSIF answer IS NOT NULL THEN
            -- There may have been a wait, and no job may be due before it was enqueued.
            moment := holdfast.now();
        END IF;
    END IF;
    IF replaced THEN
        -- If the correlation id is just the id of the job that was not made, it carries no information.
        PERFORM holdfast.rewrite_job(id, priority, max_attempts, queue,
                                     nullif(nullif(correlation_id, ''), job_id::text), payload, headers);
    ELSE
        INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
                                  payload, headers)
        VALUES (id, moment, priority, max_attempts, queue, kind, coalesce(tenant, ''),
                coalesce(nullif(correlation_id, ''), id::text), key, payload, headers)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            IF key IS NULL OR answer IS NOT NULL OR NOT holdfast.is_repeated(id, coalesce(tenant, ''), kind, key) THEN
                RAISE EXCEPTION 'job % exists already', id
                    USING ERRCODE = 'unique_violation', DETAIL = format('Key (id)=(%s) already exists.', id);
            END IF;
            -- The key was free because it had expired. Leave it as it was.
            DELETE FROM holdfast.key AS taken
            WHERE taken.tenant = coalesce(tenant, '') AND taken.kind = kind AND taken.key = key;
            is_new := false;
            RETURN;
        END IF;
    END IF;
    -- A replaced job starts over with all its attempts. The suspicion stays, because the kind, or what both payloads
    -- have in common, may still kill workers.
    INSERT INTO holdfast.ready (id, run_at, fence, priority, suspicion, is_suspect, queue, kind)
    VALUES (id, greatest(coalesce(run_at, moment + delay), moment), kept_fence, priority, coalesce(kept_suspicion, 0),
            coalesce(kept_suspicion >= 2, false), queue, kind);
    IF coalesce(run_at, moment + delay, moment) <= moment + interval '1 minute' AND EXISTS (
        SELECT FROM holdfast.sleeper WHERE sleeper.queue = queue AND sleeper.until > statement_timestamp()
    ) THEN
        PERFORM holdfast.ring(ARRAY[queue]);
    END IF;
END
$$;
