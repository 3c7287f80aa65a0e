-- Deletes what dropped days left behind in a table beside `job`, a batch at a time; see migrations/0007_upkeep.sql.
-- $1 table, $2 the id to go on after, $3 how many to look at
SELECT outcome, swept, last_id FROM holdfast.sweep($1, $2, $3)
