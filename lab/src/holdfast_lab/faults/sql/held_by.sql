-- $1 a holder
SELECT id, fence FROM holdfast.lease WHERE holder = $1
