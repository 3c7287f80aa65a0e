-- On the connection that holds the lock; see migrations/0005_schedules.sql.
-- $1 name, $2 slot, $3 timetable, $4 zone and $5 run-now requests as they were seen, $6 next slot, $7 slot of the run,
-- $8 run, $9 result, $10 error
SELECT holdfast.done($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10::text::json)
