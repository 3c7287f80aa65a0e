-- $1 name
UPDATE holdfast.schedule SET paused = true WHERE name = $1 RETURNING name
