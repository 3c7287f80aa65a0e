-- Returns at least one row, which has the clock and the time until the next occurrence.
-- $1 names, $2 whether to include all stored schedules
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now)
SELECT moment.now, coming.next_occurrence - moment.now AS next_in, due.*
FROM moment
LEFT JOIN LATERAL (
    SELECT schedule.next_occurrence FROM holdfast.schedule
    WHERE schedule.next_occurrence > moment.now AND NOT schedule.paused
      AND (schedule.name = ANY ($1::text[]) OR $2 AND schedule.origin = 'stored')
    ORDER BY schedule.next_occurrence LIMIT 1
) AS coming ON true
LEFT JOIN LATERAL (
    SELECT name, timetable, zone, missed, missed_limit, origin, schedule.next_occurrence, last_occurrence, paused, run_now, kind,
           payload::text AS payload, queue, priority, tenant, headers::text AS headers, max_attempts
    FROM holdfast.schedule
    WHERE (schedule.run_now > 0 OR schedule.next_occurrence <= moment.now AND NOT schedule.paused)
      AND (schedule.name = ANY ($1::text[]) OR $2 AND schedule.origin = 'stored')
) AS due ON true
ORDER BY due.next_occurrence, due.name
