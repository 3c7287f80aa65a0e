-- Adds up the ledger, a batch at a time; see migrations/0007_upkeep.sql.
-- $1 the number to go on after, $2 the last number to look at, $3 how many to look at
SELECT outcome, merged, last_number FROM holdfast.compact_ledger($1, $2, $3)
