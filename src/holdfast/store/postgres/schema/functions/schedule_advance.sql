-- Handles an occurrence in one transaction: the schedule's row, the jobs and the run. A locked row is being advanced,
-- paused or changed right now, and is not waited for. The UPDATE has a later snapshot, and it decides.
CREATE OR REPLACE FUNCTION holdfast.schedule_advance(
    schedule_name text, seen_occurrence timestamptz, seen_timetable text, seen_zone text, seen_run_now integer,
    to_occurrence timestamptz, run_occurrence timestamptz, run_replica text, run_result json,
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
    SET next_occurrence = to_occurrence, last_occurrence = coalesce(run_occurrence, schedule.last_occurrence),
        run_now = schedule.run_now - seen_run_now
    WHERE schedule.name = schedule_name AND schedule.kind IS NOT NULL
      AND schedule.next_occurrence = seen_occurrence AND schedule.timetable = seen_timetable AND schedule.zone = seen_zone
      AND schedule.run_now >= seen_run_now
      AND (NOT schedule.paused OR seen_run_now > 0 AND to_occurrence = seen_occurrence);
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
    INSERT INTO holdfast.run (started_at, finished_at, occurrence, name, replica, result)
    VALUES (moment, moment, run_occurrence, schedule_name, run_replica, run_result);
    RETURN true;
END
$$;
