-- How many jobs have succeeded. Sums the ledger, because a count would read all of the jobs.
SELECT coalesce(sum(amount), 0)::bigint FROM holdfast.ledger WHERE state = 'succeeded'
