-- The other half of a replacement. It may change the row in `job` in place, because the row in `ready` is a new one: a
-- claim with an older snapshot finds only the deleted row, and one that sees the new row also sees the new payload.
CREATE OR REPLACE FUNCTION holdfast.rewrite_job(
    job_id uuid, new_priority integer, new_max_attempts integer, new_queue text, new_correlation_id text,
    new_payload json, new_headers json
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE holdfast.job
    SET priority = new_priority, max_attempts = new_max_attempts, queue = new_queue,
        correlation_id = coalesce(new_correlation_id, job.correlation_id), payload = new_payload, headers = new_headers
    WHERE job.id = job_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % cannot be seen by this transaction; try again', job_id USING ERRCODE = '40001';
    END IF;
END
$$;
