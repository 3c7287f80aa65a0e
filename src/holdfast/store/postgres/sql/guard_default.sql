-- The days of the guard that was just added, or two nulls if none is needed.
-- $1 how many days from today, $2 retention
SELECT guard.day, guard.upto FROM holdfast.guard_default($1::integer, holdfast.partition_width($2)) AS guard
