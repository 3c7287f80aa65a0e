-- Make a leased job one to be buried, although a dead letter with its id already exists. $1 its id
WITH spoiled AS (UPDATE holdfast.lease SET crash_limit = 1, suspicion = 2 WHERE id = $1 RETURNING *)
INSERT INTO holdfast.dead_letter (id, created_at, finished_at, priority, attempt, losses, state, queue, kind, tenant,
                                  correlation_id, payload)
SELECT id, claimed_at, claimed_at, priority, 1, 0, 'failed', queue, kind, '', '', '{}' FROM spoiled
