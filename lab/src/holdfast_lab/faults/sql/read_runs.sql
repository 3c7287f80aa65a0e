-- The runs of an inline runner. `is_done`: the run marked its occurrence.
SELECT id, occurrence, finished_at IS NOT NULL AND error IS NULL AS is_done, error ->> 'code' AS code
FROM holdfast.run WHERE name = $1
ORDER BY id
