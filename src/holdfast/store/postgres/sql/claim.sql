-- The statement is a function so that its plan is pinned; see migrations/0002_verbs.sql.
-- $1 holder, $2 at most, $3 suspects, $4 at most candidates, $5 whether a kind is limited; per lane: $6 queues,
-- $7 priorities, $8 kinds, $9 floor times, $10 floor ids, $11 fetches, $12 kind limits, $13 leases
SELECT * FROM holdfast.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
