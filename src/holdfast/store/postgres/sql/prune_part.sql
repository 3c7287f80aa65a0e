-- Deletes old jobs of one partition, a batch at a time; see migrations/0007_upkeep.sql.
-- $1 `other` or a day like 20300131, $2 retention, $3 the id to go on after, $4 how many to look at
SELECT outcome, pruned, last_id FROM holdfast.prune_part($1, $2, $3, $4)
