-- Schedules and runs. Both are small: a schedule is one row, a run is one row per slot or per busy minute.

-- `kind` is null for an inline runner, whose function only the code has. `run_now` counts open requests, so that one that
-- comes while another is being answered is not lost.
CREATE TABLE holdfast.schedule (
    name text COLLATE "C" PRIMARY KEY,
    timetable text NOT NULL,
    zone text NOT NULL,
    missed text NOT NULL,
    missed_limit integer NOT NULL,
    origin text NOT NULL CHECK (origin IN ('code', 'stored')),
    next_slot timestamptz NOT NULL,
    last_slot timestamptz,
    paused boolean NOT NULL DEFAULT false,
    run_now integer NOT NULL DEFAULT 0,
    kind text,
    payload json,
    queue text,
    priority smallint,
    tenant text,
    headers json,
    max_attempts smallint
) WITH (fillfactor = 50);
CREATE INDEX schedule_next_slot ON holdfast.schedule (next_slot);
CREATE INDEX schedule_run_now ON holdfast.schedule (name) WHERE run_now > 0;

CREATE TABLE holdfast.run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL,
    finished_at timestamptz,
    slot timestamptz,
    name text COLLATE "C" NOT NULL,
    replica text NOT NULL,
    result json,
    error json
);
CREATE INDEX run_started ON holdfast.run (started_at, id);
CREATE INDEX run_name ON holdfast.run (name, started_at, id);
CREATE INDEX run_unfinished ON holdfast.run (name) WHERE finished_at IS NULL;

-- A lock's text as the number that PostgreSQL takes. Documented, so that other programs can take the same lock.
CREATE FUNCTION holdfast.lock_key(lock text) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substr(sha256(convert_to(lock, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
$$;

-- One transaction for a slot: the schedule's row, the jobs, the run. A row that somebody else has locked is being moved
-- on, paused or changed at this moment; it is not waited for. The UPDATE has a snapshot of its own, and it decides.
CREATE FUNCTION holdfast.advance(
    schedule_name text, seen_slot timestamptz, seen_timetable text, seen_zone text, seen_run_now integer,
    to_slot timestamptz, run_slot timestamptz, run_replica text, run_result json,
    ids uuid[], kinds text[], queues text[], priorities smallint[], tenants text[], correlation_ids text[],
    attempt_limits smallint[], payloads text[], header_texts text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    PERFORM FROM holdfast.schedule WHERE schedule.name = schedule_name FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE holdfast.schedule
    SET next_slot = to_slot, last_slot = coalesce(run_slot, schedule.last_slot),
        run_now = schedule.run_now - seen_run_now
    WHERE schedule.name = schedule_name AND schedule.kind IS NOT NULL
      AND schedule.next_slot = seen_slot AND schedule.timetable = seen_timetable AND schedule.zone = seen_zone
      AND schedule.run_now >= seen_run_now
      AND (NOT schedule.paused OR seen_run_now > 0 AND to_slot = seen_slot);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM enqueued.id
    FROM unnest(ids, kinds, queues, priorities, tenants, correlation_ids, attempt_limits, payloads, header_texts)
        AS given (id, kind, queue, priority, tenant, correlation_id, max_attempts, payload, headers)
    CROSS JOIN LATERAL holdfast.enqueue(
        kind => given.kind, payload => given.payload::json, queue => given.queue, priority => given.priority::integer,
        tenant => given.tenant, correlation_id => given.correlation_id, max_attempts => given.max_attempts::integer,
        headers => given.headers::json, job_id => given.id
    ) AS enqueued;
    INSERT INTO holdfast.run (started_at, finished_at, slot, name, replica, result)
    VALUES (moment, moment, run_slot, schedule_name, run_replica, run_result);
    RETURN true;
END
$$;

-- Takes an inline runner's lock for the transaction that calls it, or returns false at once. That transaction then waits
-- for as long as the function runs, so a timeout that the server has for idle transactions must not end it; and a client
-- that vanished without a word must not keep the lock for the hours that TCP would give it. It is noticed after 20 seconds;
-- the client gives up sooner (see lock.py), so that two never run.
CREATE FUNCTION holdfast.take_lock(lock text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config(wanted.name, wanted.setting, true)
    FROM (VALUES ('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'),
                 ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
                 ('tcp_user_timeout', '20000')) AS wanted (name, setting)
    -- Not every version has all of them.
    JOIN pg_settings USING (name);
    RETURN pg_try_advisory_xact_lock(holdfast.lock_key(lock));
END
$$;

-- The end of an inline runner's slot, in the transaction that holds the lock. A schedule that was moved on, changed or
-- removed meanwhile keeps the slot that it has now.
CREATE FUNCTION holdfast.done(
    schedule_name text, seen_slot timestamptz, seen_timetable text, seen_zone text, seen_run_now integer,
    to_slot timestamptz, run_slot timestamptz, run_id bigint, run_result json, run_error json
) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.schedule
    SET next_slot = CASE WHEN (schedule.next_slot, schedule.timetable, schedule.zone)
                              = (seen_slot, seen_timetable, seen_zone)
                         THEN to_slot ELSE schedule.next_slot END,
        last_slot = coalesce(run_slot, schedule.last_slot), run_now = greatest(0, schedule.run_now - seen_run_now)
    WHERE schedule.name = schedule_name;
    UPDATE holdfast.run SET finished_at = holdfast.now(), result = run_result, error = run_error
    WHERE run.id = run_id AND run.finished_at IS NULL;
$$;
