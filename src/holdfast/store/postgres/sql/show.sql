-- The newest first, by id; jobs that are not there are left out.
-- $1 ids
SELECT * FROM holdfast.show($1)
