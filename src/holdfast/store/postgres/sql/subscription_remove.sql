-- $1 name
DELETE FROM holdfast.subscription WHERE name = $1 RETURNING name
