-- $1 name, $2 error
UPDATE holdfast.run SET finished_at = holdfast.now(), error = $2::text::json
WHERE name = $1 AND finished_at IS NULL
RETURNING id
