-- The days whose partitions are older than the retention as a whole, oldest first.
-- $1 retention
SELECT days.day FROM holdfast.partition_days() AS days (day) WHERE holdfast.is_past(days.day, $1) ORDER BY days.day
