-- Where compaction ends: what is appended later is left to the next one.
SELECT coalesce(max(number), 0) AS number FROM holdfast.ledger
