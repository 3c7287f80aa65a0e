-- The first days of the partitions that should be gone by now, oldest first.
-- $1 retention
SELECT days.day FROM holdfast.partition_days() AS days WHERE holdfast.is_overdue(days.day, $1) ORDER BY days.day
