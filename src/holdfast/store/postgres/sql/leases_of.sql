-- Reads the whole table, which holds only running jobs. Runs only after an answer was lost.
-- The claims of one holder: $1 the lowest, $2 the highest
SELECT id, fence, claim FROM holdfast.lease WHERE claim BETWEEN $1 AND $2
