-- finish_in_transaction() for outcomes other than success: the job fails, is canceled or comes back later. It waits for
-- the lease, which finish() would skip if another transaction has locked it.
CREATE OR REPLACE FUNCTION holdfast.end_in_transaction(
    job_id uuid, with_claim uuid, move text, state text, delay interval, moment timestamptz, error text,
    kept_errors integer
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM holdfast.lease WHERE lease.id = job_id AND lease.claim = with_claim FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease of job % by claim % was lost; roll back', job_id, with_claim
            USING ERRCODE = 'HF001';
    END IF;
    -- If the client vanishes now, the lease stays locked until TCP notices, which can take hours.
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '5min', true);
    END IF;
    PERFORM holdfast.finish(ARRAY[job_id], ARRAY[with_claim], ARRAY[move], ARRAY[state], ARRAY[delay], ARRAY[moment],
                            ARRAY[error], ARRAY[NULL::text], kept_errors);
END
$$;
