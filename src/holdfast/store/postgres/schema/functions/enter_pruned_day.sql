-- Of a dropped day only these jobs are left; dead letters stay counted. Returns how many jobs are gone.
CREATE OR REPLACE FUNCTION holdfast.enter_pruned_day(pruned_day date, left_ids uuid[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
BEGIN
    WITH change AS (
        SELECT state, queue, kind, -sum(amount)::bigint AS amount
        FROM holdfast.ledger
        WHERE day = pruned_day AND state IN ('succeeded', 'canceled')
        GROUP BY state, queue, kind
        UNION ALL
        SELECT finished.state, job.queue, job.kind, count(*)
        FROM holdfast.finished JOIN holdfast.job ON job.id = finished.id
        WHERE finished.id = ANY (left_ids)
        GROUP BY finished.state, job.queue, job.kind
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT pruned_day, state, amount, queue, kind FROM change WHERE amount <> 0
    )
    SELECT coalesce(-sum(amount), 0) INTO pruned FROM change;
    RETURN pruned;
END
$$;
