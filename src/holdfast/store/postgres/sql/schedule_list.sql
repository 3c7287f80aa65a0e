-- Returns all schedules, because there are few.
SELECT name, timetable, zone, missed, missed_limit, origin, next_occurrence, last_occurrence, paused, run_now, kind,
       payload::text AS payload, queue, priority, tenant, headers::text AS headers, max_attempts
FROM holdfast.schedule
ORDER BY name
