-- As new: no rows, no dead rows and no files that have grown. The clock's row stays.
TRUNCATE holdfast.job, holdfast.ready, holdfast.lease, holdfast.finished, holdfast.dead_letter, holdfast.ledger,
    holdfast.attempt_error, holdfast.progress, holdfast.key, holdfast.sleeper
