-- $1 name
DELETE FROM holdfast.schedule WHERE name = $1 RETURNING name
