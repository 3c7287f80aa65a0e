-- A function, because it must be one transaction without being one statement; see migrations/0005_schedules.sql.
-- $1 name, $2 slot, $3 timetable, $4 zone and $5 run-now requests as they were seen, $6 next slot, $7 slot of the run,
-- $8 replica, $9 result, then the jobs: $10 ids, $11 kinds, $12 queues, $13 priorities, $14 tenants, $15 correlation ids,
-- $16 max attempts, $17 payloads, $18 headers
SELECT holdfast.advance($1, $2, $3, $4, $5, $6, $7, $8, $9::text::json, $10, $11, $12, $13, $14, $15, $16, $17, $18) AS won
