-- Makes the jobs that `@app.on_dead` asks for: one per dead letter and matching subscription. Every function that makes
-- dead letters calls this in the same transaction, with exactly the dead letters it made, so each death is published
-- once. A job made this way makes no job by its own death. Nothing is checked, and nothing waits: the payload may be
-- slightly larger than a producer's may be, and an error here would keep the death from being written.
-- Patterns are looked up in the index as in publish.sql, but `*` alone does not match. Names are in two parts, because
-- the first part would otherwise be replaced by the configured schema. `/` sorts right after the dot.
CREATE OR REPLACE FUNCTION holdfast.publish_deaths(ids uuid[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    moment timestamptz := holdfast.now();
    moment_text text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
    prefix text := 'holdfast' || '.dead.';
    rung text[];
BEGIN
    IF NOT EXISTS (
        SELECT FROM holdfast.subscription
        WHERE subscription.pattern > prefix AND subscription.pattern < ('holdfast' || '.dead/')
    ) THEN
        RETURN;
    END IF;
    WITH death AS MATERIALIZED (
        SELECT dead.*, string_to_array(dead.kind, '.') AS words, holdfast.new_id() AS event_id
        FROM unnest(ids) AS given (id)
        CROSS JOIN LATERAL (SELECT * FROM holdfast.dead_letter WHERE dead_letter.id = given.id LIMIT 1) AS dead
        WHERE NOT EXISTS (
            SELECT FROM holdfast.subscription
            WHERE subscription.name = dead.kind AND starts_with(subscription.pattern, prefix)
        )
    ),
    made AS MATERIALIZED (
        SELECT holdfast.new_id() AS id, found.name, found.queue, found.priority, found.max_attempts, death.tenant,
               death.correlation_id,
               json_build_object(
                   'id', death.id, 'kind', death.kind, 'payload', death.payload,
                   'code', coalesce(last_error.error ->> 'code', ''),
                   'message', coalesce(last_error.error ->> 'message', ''),
                   'state', death.state, 'attempts', death.attempt, 'tenant', death.tenant,
                   'correlation_id', death.correlation_id) AS payload,
               json_build_object('holdfast' || '.event', json_build_object(
                   'id', death.event_id, 'type', prefix || death.kind, 'published_at', moment_text)) AS headers
        FROM death
        CROSS JOIN LATERAL (
            SELECT * FROM holdfast.subscription
            WHERE subscription.pattern = ANY (ARRAY(
                SELECT prefix || array_to_string(death.words[:number] || '*'::text, '.')
                FROM generate_series(0, cardinality(death.words) - 1) AS number
            ) || (prefix || death.kind))
            OFFSET 0
        ) AS found
        LEFT JOIN LATERAL (
            SELECT attempt_error.error FROM holdfast.attempt_error WHERE attempt_error.job_id = death.id
            ORDER BY attempt_error.number DESC LIMIT 1
        ) AS last_error ON true
    ),
    jobs AS (
        INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, payload,
                                  headers)
        SELECT made.id, moment, made.priority, made.max_attempts, made.queue, made.name, made.tenant,
               made.correlation_id, made.payload, made.headers
        FROM made
    ),
    queued AS (
        INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
        SELECT made.id, moment, made.priority, made.queue, made.name FROM made
    )
    SELECT array_agg(DISTINCT made.queue) INTO rung FROM made;
    IF rung IS NOT NULL THEN
        PERFORM holdfast.ring(rung);
    END IF;
END
$$;
