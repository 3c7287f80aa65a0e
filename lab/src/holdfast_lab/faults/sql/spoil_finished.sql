-- Make a leased job one to be canceled, although it has already ended. $1 its id
WITH spoiled AS (UPDATE holdfast.lease SET cancel_requested = true WHERE id = $1 RETURNING *)
INSERT INTO holdfast.finished (id, finished_at, attempt, losses, state)
SELECT id, claimed_at, 1, 0, 'canceled' FROM spoiled
