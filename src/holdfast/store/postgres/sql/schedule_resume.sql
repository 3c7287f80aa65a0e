-- One that is not paused keeps its slot, which may be due at this moment.
-- $1 name, $2 next slot
UPDATE holdfast.schedule
SET next_slot = CASE WHEN paused THEN $2::timestamptz ELSE next_slot END, paused = false
WHERE name = $1
RETURNING name
