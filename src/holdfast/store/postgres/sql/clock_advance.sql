-- Moves the clock for every process that uses this schema, frozen or not. For tests.
-- $1 duration
UPDATE holdfast.clock
SET moved = CASE WHEN frozen_at IS NULL THEN moved + $1::interval ELSE moved END, frozen_at = frozen_at + $1::interval
