-- The jobs of schedule $1, each with its occurrence and its delay after it in seconds. $2 and $3: names of the headers
SELECT id, occurrence, extract(epoch FROM created_at - occurrence)::float8 AS late
FROM holdfast.job CROSS JOIN LATERAL (SELECT (headers ->> $3)::timestamptz AS occurrence) AS its
WHERE headers ->> $2 = $1
ORDER BY occurrence
