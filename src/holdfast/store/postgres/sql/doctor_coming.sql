-- Schedules that wait for a future occurrence. Their timetables say whether it is the right one.
-- $1 at most
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now)
SELECT schedule.name, schedule.timetable, schedule.zone, schedule.next_occurrence, schedule.last_occurrence, moment.now
FROM moment CROSS JOIN holdfast.schedule
WHERE schedule.next_occurrence > moment.now AND NOT schedule.paused
ORDER BY schedule.next_occurrence DESC
LIMIT $1
