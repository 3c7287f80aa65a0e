-- An unchanged declaration is neither written nor locked, because every process declares when it starts. Rows are taken
-- in order of name, so two processes cannot deadlock.
-- $1 names, $2 patterns, $3 queues, $4 priorities, $5 max attempts
INSERT INTO holdfast.subscription AS kept (name, pattern, queue, priority, max_attempts, created_at, updated_at)
SELECT given.name, given.pattern, given.queue, given.priority, given.max_attempts, moment.now, moment.now
FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[])
    AS given (name, pattern, queue, priority, max_attempts)
CROSS JOIN (SELECT holdfast.now() AS now) AS moment
WHERE NOT EXISTS (
    SELECT FROM holdfast.subscription AS same
    WHERE same.name = given.name
      AND (same.pattern, same.queue, same.priority, same.max_attempts)
          IS NOT DISTINCT FROM (given.pattern, given.queue, given.priority, given.max_attempts)
)
ORDER BY given.name
ON CONFLICT (name) DO UPDATE
SET pattern = excluded.pattern, queue = excluded.queue, priority = excluded.priority,
    max_attempts = excluded.max_attempts, updated_at = excluded.updated_at
