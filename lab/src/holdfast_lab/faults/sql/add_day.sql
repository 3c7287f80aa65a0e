-- $1 a day before today: its partitions
SELECT holdfast.add_partitions($1, 1)
