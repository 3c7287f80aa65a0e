-- The statement is a function so that its plan is pinned; see schema/tables.sql.
-- $1 queues, $2 kinds, $3 whether suspects are wanted, or all others, $4 shard, $5 number of shards
SELECT holdfast.next_due($1, $2, $3, $4, $5) AS due_in
