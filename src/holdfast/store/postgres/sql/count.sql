-- Counts by state. What is live is counted where it lives; what is final is a sum of the ledger, not a scan of history.
SELECT 'ready' AS state, count(*) AS jobs FROM holdfast.ready
UNION ALL SELECT 'running', count(*) FROM holdfast.lease
UNION ALL SELECT state::text, sum(amount)::bigint FROM holdfast.ledger GROUP BY state
