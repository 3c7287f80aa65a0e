-- $1 a job that is leased: it is to be canceled, and has ended already
WITH spoiled AS (UPDATE holdfast.lease SET cancel_requested = true WHERE id = $1 RETURNING *)
INSERT INTO holdfast.finished (id, finished_at, attempt, losses, state)
SELECT id, claimed_at, 1, 0, 'canceled' FROM spoiled
