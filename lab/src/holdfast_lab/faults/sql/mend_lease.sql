-- Undo what one of the three spoil_*.sql did to a leased job. $1 its id
WITH letter AS (DELETE FROM holdfast.dead_letter WHERE id = $1),
final AS (DELETE FROM holdfast.finished WHERE id = $1),
waiting AS (DELETE FROM holdfast.ready WHERE id = $1)
UPDATE holdfast.lease SET crash_limit = 0, suspicion = 0, cancel_requested = false WHERE id = $1
