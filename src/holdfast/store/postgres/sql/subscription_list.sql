-- Returns all subscriptions, because there are few.
SELECT name, pattern, queue, priority, max_attempts, created_at, updated_at FROM holdfast.subscription ORDER BY name
