-- For the transaction of one question: a doctor must neither wait in a queue for a lock, where others would wait behind
-- it, nor keep an old snapshot for long.
-- $1 longest time, as text
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', '1s', true)
