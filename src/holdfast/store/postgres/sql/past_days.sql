-- The first days of the partitions that are entirely older than the retention or should be gone by now; oldest first.
-- $1 retention
SELECT part.day, part.is_past, part.is_overdue, part.is_foreign
FROM (
    SELECT days.day, holdfast.is_past(days.day, $1) AS is_past, holdfast.is_overdue(days.day, $1) AS is_overdue,
           days.upto IS NULL AS is_foreign
    FROM holdfast.partition_days() AS days
) AS part
WHERE part.is_past OR part.is_overdue
ORDER BY part.day
