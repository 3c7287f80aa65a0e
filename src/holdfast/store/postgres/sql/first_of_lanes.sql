-- The statement is a function so that its plan is pinned; see schema/tables.sql.
-- $1 whether only due jobs count, $2 shard, $3 number of shards; per lane: $4 queues, $5 priorities, $6 kinds, $7 floor
-- times, $8 floor ids
SELECT queue, priority, kind, run_at, id, moment, took FROM holdfast.first_of_lanes($1, $2, $3, $4, $5, $6, $7, $8)
