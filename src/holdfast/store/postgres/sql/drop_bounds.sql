-- For the rest of the transaction that is about to lock everything else out. Neither the server nor a client that has
-- stopped responding may keep the locks for longer.
-- $1 longest time, $2 longest silence of the client, as text
SELECT set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)
