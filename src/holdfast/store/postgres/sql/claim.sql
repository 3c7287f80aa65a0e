-- The statement is a function so that its plan is pinned; see schema/tables.sql.
-- $1 holder, $2 at most, $3 suspects, $4 at most candidates, $5 whether a kind is limited, $6 shard, $7 number
-- of shards; per lane: $8 queues, $9 priorities, $10 kinds, $11 floor times, $12 floor ids, $13 fetches, $14 kind limits,
-- $15 leases; $16 whether to tell the places in the queue: a time is dear to read.
-- The columns are in the order of LeasedJob, the first two being those of its Lease.
SELECT id, fence, kind, queue, priority, payload, headers, tenant, correlation_id, attempt, losses, max_attempts, created_at,
       CASE WHEN $16 THEN run_at END AS run_at
FROM holdfast.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
