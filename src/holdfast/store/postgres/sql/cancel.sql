-- The statement is a function so that its plan is pinned; see migrations/0004_rare_verbs.sql.
-- $1 ids
SELECT id, canceling FROM holdfast.cancel($1)
