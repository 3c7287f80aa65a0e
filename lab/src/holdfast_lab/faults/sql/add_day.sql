-- Add the partitions of a past day. $1 the day
SELECT holdfast.add_partitions($1, 1)
