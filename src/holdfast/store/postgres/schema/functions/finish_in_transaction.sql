-- For a handler's own transaction. Raises if the lease was lost, so the transaction cannot commit.
CREATE OR REPLACE FUNCTION holdfast.finish_in_transaction(
    job_id uuid, with_claim uuid, with_result text
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    held holdfast.lease;
BEGIN
    DELETE FROM holdfast.lease
    WHERE lease.id = job_id AND lease.claim = with_claim
    RETURNING lease.* INTO held;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease of job % by claim % was lost; roll back', job_id, with_claim
            USING ERRCODE = 'HF001';
    END IF;
    -- If the client vanishes now, the lease stays locked until TCP notices, which can take hours.
    IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '5min', true);
    END IF;
    INSERT INTO holdfast.finished (id, claim, fence, started_at, finished_at, attempt, losses, state, result)
    VALUES (held.id, held.claim, held.fence, held.claimed_at, holdfast.now(), held.attempt, held.losses, 'succeeded',
            with_result::json);
    INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
    VALUES (holdfast.day_of(held.id), 'succeeded', 1, held.queue, held.kind);
    PERFORM holdfast.ring_waiters(ARRAY[job_id]);
END
$$;
