-- $1 ids
SELECT id FROM holdfast.not_live($1)
