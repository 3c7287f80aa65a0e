-- The statement is a function so that its plan is pinned; see migrations/0013_firsts.sql.
-- $1 shard, $2 number of shards; per lane: $3 queues, $4 priorities, $5 kinds, $6 floor times, $7 floor ids
SELECT queue, priority, kind, run_at, id, moment FROM holdfast.first_of_lanes($1, $2, $3, $4, $5, $6, $7)
