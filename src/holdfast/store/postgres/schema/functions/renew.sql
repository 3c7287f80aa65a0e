-- Extends leases and returns which were renewed; `why_not_held` explains the others. It never waits: a lease that a
-- transaction holds to finish its job is left alone.
CREATE OR REPLACE FUNCTION holdfast.renew(
    ids uuid[], claims uuid[], extensions interval[], notes text[]
) RETURNS TABLE (number bigint, cancel_requested boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(ids, claims, extensions, notes) WITH ORDINALITY AS given (id, claim, extension, note, number)
    ),
    held AS MATERIALIZED (
        SELECT given.id, given.claim, given.extension, given.note, given.number
        FROM given
        CROSS JOIN LATERAL (
            SELECT FROM holdfast.lease
            WHERE lease.id = given.id AND lease.claim = given.claim
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS lease
    ),
    renewed AS (
        UPDATE holdfast.lease SET until = moment + held.extension
        FROM held WHERE lease.id = ANY (ARRAY[held.id]) AND lease.claim = held.claim
        RETURNING lease.id, lease.fence, lease.cancel_requested, held.note, held.number
    ),
    noted AS (
        INSERT INTO holdfast.progress AS old (job_id, fence, at, value)
        SELECT renewed.id, renewed.fence, moment, renewed.note::json FROM renewed WHERE renewed.note IS NOT NULL
        ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, at = excluded.at, value = excluded.value
        WHERE old.fence <= excluded.fence
    )
    SELECT renewed.number, renewed.cancel_requested FROM renewed;
END
$$;
