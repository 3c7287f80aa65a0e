-- Limits for the transaction of one question. The doctor must not wait for a lock, because others would then wait
-- behind it, nor keep an old snapshot for long.
-- $1 longest time, as text
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', '1s', true)
