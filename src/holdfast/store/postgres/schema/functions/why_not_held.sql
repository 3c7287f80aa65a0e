-- Explains why a change that named a claim was not done: another transaction holds the lease, this claim has already
-- finished the job, or the lease is lost. Runs after the change, in a later snapshot, so it sees a commit in between.
-- `= ANY (ARRAY[...])`, because the planner may turn EXISTS with a plain equality into a hash of the table.
CREATE OR REPLACE FUNCTION holdfast.why_not_held(ids uuid[], claims uuid[])
RETURNS TABLE (number bigint, fenced text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT given.number,
           CASE
               WHEN EXISTS (SELECT FROM holdfast.lease
                            WHERE lease.id = ANY (ARRAY[given.id]) AND lease.claim = given.claim) THEN 'locked'
               WHEN EXISTS (SELECT FROM holdfast.finished
                            WHERE finished.id = ANY (ARRAY[given.id]) AND finished.claim = given.claim)
                 OR EXISTS (SELECT FROM holdfast.dead_letter
                            WHERE dead_letter.id = ANY (ARRAY[given.id]) AND dead_letter.claim = given.claim)
                   THEN 'already'
               ELSE 'stale'
           END
    FROM unnest(ids, claims) WITH ORDINALITY AS given (id, claim, number)
    ORDER BY given.number;
END
$$;
