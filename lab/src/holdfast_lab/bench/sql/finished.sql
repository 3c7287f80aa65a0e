-- How many jobs have succeeded. The sum of the ledger, because a count would read all of them.
SELECT coalesce(sum(amount), 0)::bigint FROM holdfast.ledger WHERE state = 'succeeded'
