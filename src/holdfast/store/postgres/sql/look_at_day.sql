-- Whether a day's partitions can be dropped; see migrations/0007_upkeep.sql. First in the transaction of drop_day.
-- $1 day, $2 retention, $3 how many jobs may be moved out at most, $4 how many bytes
SELECT outcome, entries, recent FROM holdfast.look_at_day($1, $2, $3, $4)
