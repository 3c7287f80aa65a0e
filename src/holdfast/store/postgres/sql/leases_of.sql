-- Reads the whole table, which holds only what is running; asked only after an answer was lost.
-- $1 holder
SELECT id, fence FROM holdfast.lease WHERE holder = $1
