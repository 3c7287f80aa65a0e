-- claim.sql without suspects and limited kinds; the same columns.
-- $1 holder, $2 at most, $3 shard, $4 number of shards; per lane: $5 queues, $6 priorities, $7 kinds, $8 floor times,
-- $9 floor ids, $10 fetches, $11 leases; $12 whether to tell the places in the queue
SELECT id, fence, kind, queue, priority, payload, headers, tenant, correlation_id, attempt, losses, max_attempts, created_at,
       CASE WHEN $12 THEN run_at END AS run_at
FROM holdfast.claim_usual($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
