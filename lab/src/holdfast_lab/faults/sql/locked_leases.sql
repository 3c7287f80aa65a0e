-- Which of these jobs have a lease that an open transaction is about to end.
-- $1 ids
SELECT id FROM holdfast.lease WHERE id = ANY ($1)
EXCEPT
SELECT id FROM (SELECT id FROM holdfast.lease WHERE id = ANY ($1) FOR KEY SHARE SKIP LOCKED) AS free
