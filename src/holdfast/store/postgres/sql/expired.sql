-- Leases that a rescue would take.
-- $1 at most, $2 ids to leave alone, $3 expired by this time, even if the clock is later, $4 at most this long
SELECT id FROM holdfast.lease
WHERE until <= least(holdfast.now(), $3::timestamptz) AND NOT id = ANY ($2::uuid[])
  AND (holdfast.lease_length(claim) <= $4::interval) IS NOT FALSE
ORDER BY until, id
LIMIT $1
