-- For a handler that finishes a row of the application's own table in its own transaction. The statement is built from
-- the mapping and ends with this call. Raises if the lock was lost, so the transaction cannot commit.
CREATE OR REPLACE FUNCTION holdfast.held_or_raise(is_held boolean, mapping text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT is_held THEN
        RAISE EXCEPTION 'the lock of this row of "%" was lost; roll back', mapping USING ERRCODE = 'HF001';
    END IF;
    -- If the client vanishes now, the row stays locked until TCP notices, which can take hours.
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '5min', true);
    END IF;
END
$$;
