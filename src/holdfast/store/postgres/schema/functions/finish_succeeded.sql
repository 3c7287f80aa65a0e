-- finish() for the most common case: success without a result. It does not lock first, which would write a tenth more.
-- Only a handler's transaction could hold such a lease for long; then the lock timeout sends the caller to finish().
-- Returns the numbers it did not finish, or null if it finished all.
CREATE OR REPLACE FUNCTION holdfast.finish_succeeded(ids uuid[], claims uuid[])
RETURNS bigint[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off SET lock_timeout = '100ms'
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    done bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM holdfast.lease USING unnest(ids, claims) WITH ORDINALITY AS given (id, claim, number)
        WHERE lease.id = ANY (ARRAY[given.id]) AND lease.claim = given.claim
        RETURNING given.number, lease.id, lease.claim, lease.fence, lease.claimed_at, lease.attempt, lease.losses,
                  lease.queue, lease.kind
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), 'succeeded'::holdfast.job_state, count(*), gone.queue, gone.kind
        FROM gone
        GROUP BY 1, 4, 5
    ),
    ended AS (
        INSERT INTO holdfast.finished (id, claim, fence, started_at, finished_at, attempt, losses, state)
        SELECT gone.id, gone.claim, gone.fence, gone.claimed_at, moment, gone.attempt, gone.losses,
               'succeeded'::holdfast.job_state
        FROM gone
    )
    SELECT array_agg(gone.number) INTO done FROM gone;
    -- Checked here too, because the call alone takes longer than the check.
    IF EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp()) THEN
        PERFORM holdfast.ring_waiters(ids);
    END IF;
    IF cardinality(done) = cardinality(ids) THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(SELECT generate_series(1::bigint, cardinality(ids)) EXCEPT SELECT unnest(done) ORDER BY 1);
END
$$;
