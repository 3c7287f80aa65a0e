-- A finished run is not changed again: a replica that was given up may still write.
-- $1 run, $2 result, $3 error
UPDATE holdfast.run SET finished_at = holdfast.now(), result = $2::text::json, error = $3::text::json
WHERE id = $1 AND finished_at IS NULL
RETURNING id
