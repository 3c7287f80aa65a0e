-- Inside the transaction that is to hold the lock; see migrations/0005_schedules.sql.
-- $1 the lock's text
SELECT holdfast.take_lock($1) AS taken
