-- Deletes old dead letters with all that belongs to them, a batch at a time; see migrations/0007_upkeep.sql.
-- $1 retention, $2 at most
SELECT outcome, pruned FROM holdfast.prune_dead_letters($1, $2)
