-- $1 chore, $2 what it could not remove and why, or null
INSERT INTO holdfast.maintenance (chore, done_at, trouble) VALUES ($1, holdfast.now(), $2)
ON CONFLICT (chore) DO UPDATE SET done_at = excluded.done_at, trouble = excluded.trouble
