-- One that is not paused keeps its slot, which may be due at this moment.
-- $1 name, $2 timetable and $3 zone as they were seen, $4 next slot
UPDATE holdfast.schedule
SET next_slot = CASE WHEN paused THEN $4::timestamptz ELSE next_slot END, paused = false
WHERE name = $1 AND timetable = $2 AND zone = $3
RETURNING name
