-- Make the store like new: no rows, no dead rows and no grown files. The clock's row stays.
TRUNCATE holdfast.job, holdfast.ready, holdfast.lease, holdfast.finished, holdfast.dead_letter, holdfast.ledger,
    holdfast.attempt_error, holdfast.progress, holdfast.key, holdfast.sleeper
