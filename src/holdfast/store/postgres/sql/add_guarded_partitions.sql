-- For the days of a validated guard.
-- $1 the first day, $2 the day after the last one, $3 retention
SELECT holdfast.add_partitions($1::date, $2::date - $1::date, holdfast.partition_width($3)) AS added
