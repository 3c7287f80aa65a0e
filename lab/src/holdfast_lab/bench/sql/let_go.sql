-- Make everything due on commit, wake the sleepers, and return the time.
-- $1 queues
WITH let_go AS (UPDATE holdfast.clock SET moved = interval '0')
SELECT clock_timestamp(), holdfast.ring($1)
