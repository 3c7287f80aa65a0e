-- $1 chore
INSERT INTO holdfast.maintenance (chore, done_at) VALUES ($1, holdfast.now())
ON CONFLICT (chore) DO UPDATE SET done_at = EXCLUDED.done_at
