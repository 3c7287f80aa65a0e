-- The end of an inline runner's slot, in the transaction that holds the lock. A schedule that was moved on, changed or
-- removed meanwhile keeps the slot that it has now.
CREATE OR REPLACE FUNCTION holdfast.schedule_done(
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
