-- $1 step
INSERT INTO holdfast.upkeep (step, done_at) VALUES ($1, holdfast.now())
ON CONFLICT (step) DO UPDATE SET done_at = EXCLUDED.done_at
