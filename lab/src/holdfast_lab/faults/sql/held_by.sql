-- The claims of one holder: $1 the lowest, $2 the highest
SELECT id, fence FROM holdfast.lease WHERE claim BETWEEN $1 AND $2
