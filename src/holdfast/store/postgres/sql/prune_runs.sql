-- Deletes old runs, a batch at a time; see migrations/0007_upkeep.sql.
-- $1 retention, $2 the id to go on after, $3 how many to look at
SELECT outcome, pruned, last_id FROM holdfast.prune_runs($1, $2, $3)
