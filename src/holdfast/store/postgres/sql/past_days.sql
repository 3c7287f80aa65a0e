-- The days on which partitions begin that are older than the retention as a whole, or should have gone by now; oldest first.
-- $1 retention
SELECT part.day, part.is_past, part.is_overdue
FROM (
    SELECT days.day, holdfast.is_past(days.day, $1) AS is_past, holdfast.is_overdue(days.day, $1) AS is_overdue
    FROM holdfast.partition_days() AS days
) AS part
WHERE part.is_past OR part.is_overdue
ORDER BY part.day
