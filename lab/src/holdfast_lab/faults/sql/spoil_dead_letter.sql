-- $1 a job that is leased: it is to be buried, and there is a dead letter of this id already
WITH spoiled AS (UPDATE holdfast.lease SET crash_limit = 1, suspicion = 2 WHERE id = $1 RETURNING *)
INSERT INTO holdfast.dead_letter (id, created_at, finished_at, priority, attempt, losses, state, queue, kind, tenant,
                                  correlation_id, payload)
SELECT id, claimed_at, claimed_at, priority, 1, 0, 'failed', queue, kind, '', '', '{}' FROM spoiled
