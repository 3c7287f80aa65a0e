-- A schedule that is not paused keeps its occurrence, which may be due right now.
-- $1 name, $2 timetable and $3 zone as seen, $4 next occurrence
UPDATE holdfast.schedule
SET next_occurrence = CASE WHEN paused THEN $4::timestamptz ELSE next_occurrence END, paused = false
WHERE name = $1 AND timetable = $2 AND zone = $3
RETURNING name
