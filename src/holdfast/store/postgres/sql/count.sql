-- Counts by state. Live jobs are counted in their tables; final jobs are a sum of the ledger, not a scan of history.
SELECT 'ready' AS state, count(*) AS jobs FROM holdfast.ready
UNION ALL SELECT 'running', count(*) FROM holdfast.lease
UNION ALL SELECT state::text, sum(amount)::bigint FROM holdfast.ledger GROUP BY state
