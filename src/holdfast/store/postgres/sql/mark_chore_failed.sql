-- $1 chore, $2 error
INSERT INTO holdfast.maintenance (chore, trouble) VALUES ($1, $2)
ON CONFLICT (chore) DO UPDATE SET trouble = excluded.trouble
