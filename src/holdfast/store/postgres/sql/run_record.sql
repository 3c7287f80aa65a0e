-- $1 name, $2 replica, $3 occurrence, $4 how long ago it started, $5 result, $6 error
INSERT INTO holdfast.run (started_at, finished_at, occurrence, name, replica, result, error)
SELECT moment.now - $4::interval, moment.now, $3, $1, $2, $5::text::json, $6::text::json
FROM (SELECT holdfast.now() AS now) AS moment
