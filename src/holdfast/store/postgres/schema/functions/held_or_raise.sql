-- For a handler that finishes a row of the application's own table in its own transaction: the statement is built from the
-- mapping and ends with this call. Raises when the lock was lost, so that such a transaction cannot commit.
CREATE OR REPLACE FUNCTION holdfast.held_or_raise(is_held boolean, mapping text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT is_held THEN
        RAISE EXCEPTION 'the lock of this row of "%" was lost; roll back', mapping USING ERRCODE = 'HF001';
    END IF;
    -- A client that vanishes now would keep the row locked until TCP notices, up to hours.
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '5min', true);
    END IF;
END
$$;
