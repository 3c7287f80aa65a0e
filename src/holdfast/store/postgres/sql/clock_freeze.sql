-- Stops the clock for every process that uses this schema. For tests.
-- $1 time
UPDATE holdfast.clock SET frozen_at = $1::timestamptz
