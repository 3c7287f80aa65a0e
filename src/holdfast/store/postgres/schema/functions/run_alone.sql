-- Records that the job of this lease starts alone. Returns whether it was recorded; `why_not_held` explains why not.
CREATE OR REPLACE FUNCTION holdfast.run_alone(with_id uuid, with_claim uuid, limit_of_crashes smallint)
RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    UPDATE holdfast.lease SET crash_limit = limit_of_crashes
    WHERE lease.id = (
        SELECT lease.id FROM holdfast.lease
        WHERE lease.id = with_id AND lease.claim = with_claim
        FOR NO KEY UPDATE SKIP LOCKED);
    RETURN FOUND;
END
$$;
