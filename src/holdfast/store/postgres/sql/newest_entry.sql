-- Where compaction ends. Later entries are left to the next one.
SELECT coalesce(max(number), 0) AS number FROM holdfast.ledger
