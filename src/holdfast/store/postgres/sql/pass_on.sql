-- A process that was woken but can take no more wakes two others of its team, and each of them does the same if needed.
-- A batch thus reaches all sleepers in a few steps.
-- $1 queues, $2 holder, $3 team
SELECT holdfast.hint('holdfast_sleeper_' || other.holder, 'passed:' || wanted.queue)
FROM unnest($1::text[]) AS wanted (queue)
CROSS JOIN LATERAL (
    SELECT sleeper.holder FROM holdfast.sleeper
    WHERE sleeper.queue = wanted.queue AND sleeper.until > clock_timestamp()
      AND sleeper.team = $3 AND sleeper.holder <> $2
    ORDER BY sleeper.until < clock_timestamp() + interval '9 seconds', random()
    LIMIT 2
) AS other
