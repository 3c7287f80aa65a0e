-- Takes lost leases out of the suspicion of their jobs, wherever the jobs are now, each lease only once. Returns the
-- numbers of those to try again, because another transaction had locked the job's row. One lease at a time: a job may
-- move meanwhile, and only a new statement sees where it went.
CREATE OR REPLACE FUNCTION holdfast.absolve(ids uuid[], claims uuid[]) RETURNS TABLE (number bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    given record;
    error_number bigint;
BEGIN
    FOR given IN SELECT * FROM unnest(ids, claims) WITH ORDINALITY AS given (id, claim, number) LOOP
        SELECT attempt_error.number INTO error_number FROM holdfast.attempt_error
        WHERE attempt_error.job_id = given.id AND attempt_error.lost_claim = given.claim
        LIMIT 1 FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        UPDATE holdfast.ready
        SET suspicion = greatest(ready.suspicion - 1, 0), is_suspect = ready.suspicion - 1 >= 2
        WHERE ready.id = (SELECT ready.id FROM holdfast.ready WHERE ready.id = given.id FOR UPDATE SKIP LOCKED);
        IF NOT FOUND THEN
            UPDATE holdfast.lease SET suspicion = greatest(lease.suspicion - 1, 0)
            WHERE lease.id = (
                SELECT lease.id FROM holdfast.lease WHERE lease.id = given.id FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
        IF NOT FOUND AND (EXISTS (SELECT FROM holdfast.ready WHERE ready.id = given.id)
                          OR EXISTS (SELECT FROM holdfast.lease WHERE lease.id = given.id)) THEN
            number := given.number;
            RETURN NEXT;
        ELSE
            UPDATE holdfast.attempt_error SET lost_claim = NULL
            WHERE attempt_error.job_id = given.id AND attempt_error.number = error_number;
        END IF;
    END LOOP;
END
$$;
