-- A locked row is being advanced or changed right now, and is not waited for.
-- $1 name, $2 next occurrence, $3 timetable and $4 zone as seen, $5 the occurrence to go on with
UPDATE holdfast.schedule SET next_occurrence = $5::timestamptz
WHERE name IN (SELECT same.name FROM holdfast.schedule AS same WHERE same.name = $1 FOR UPDATE SKIP LOCKED)
  AND next_occurrence = $2::timestamptz AND timetable = $3 AND zone = $4 AND NOT paused
RETURNING name
