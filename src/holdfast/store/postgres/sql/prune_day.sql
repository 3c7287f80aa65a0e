-- Drops a day's partitions; see migrations/0007_upkeep.sql. Only under read committed.
-- $1 day, $2 retention, $3 how many jobs may be moved out at most
SELECT outcome, pruned, moved FROM holdfast.prune_day($1, $2, $3)
