-- $1 name
UPDATE holdfast.schedule SET run_now = run_now + 1 WHERE name = $1 RETURNING name
