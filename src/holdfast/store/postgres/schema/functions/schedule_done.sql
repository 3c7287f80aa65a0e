-- Ends an inline runner's occurrence, in the transaction that holds the lock. A schedule that was advanced, changed or
-- removed meanwhile keeps its current occurrence.
CREATE OR REPLACE FUNCTION holdfast.schedule_done(
    schedule_name text, seen_occurrence timestamptz, seen_timetable text, seen_zone text, seen_run_now integer,
    to_occurrence timestamptz, run_occurrence timestamptz, run_id bigint, run_result json, run_error json
) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.schedule
    SET next_occurrence = CASE WHEN (schedule.next_occurrence, schedule.timetable, schedule.zone)
                              = (seen_occurrence, seen_timetable, seen_zone)
                         THEN to_occurrence ELSE schedule.next_occurrence END,
        last_occurrence = coalesce(run_occurrence, schedule.last_occurrence), run_now = greatest(0, schedule.run_now - seen_run_now)
    WHERE schedule.name = schedule_name;
    UPDATE holdfast.run SET finished_at = holdfast.now(), result = run_result, error = run_error
    WHERE run.id = run_id AND run.finished_at IS NULL;
$$;
