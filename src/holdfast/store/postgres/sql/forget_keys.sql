-- Deletes keys whose window is over, a batch at a time; see migrations/0008_keys.sql.
-- $1 at most
SELECT outcome, forgotten FROM holdfast.forget_keys($1)
