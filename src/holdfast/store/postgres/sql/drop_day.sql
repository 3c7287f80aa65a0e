-- Drops a day's partitions; see migrations/0007_upkeep.sql. Only under read committed, after look_at_day.
-- $1 day, $2 and $3 the entries and the recent jobs that look_at_day found, $4 how many jobs may be moved, $5 how many bytes
SELECT outcome, pruned, moved FROM holdfast.drop_day($1, $2, $3, $4, $5)
