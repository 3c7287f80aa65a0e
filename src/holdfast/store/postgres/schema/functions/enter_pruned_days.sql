-- Corrects the ledger when only these jobs are left of the days from `first_day` to before `upto`. Dead letters stay
-- counted. Returns how many jobs are gone.
CREATE OR REPLACE FUNCTION holdfast.enter_pruned_days(first_day date, upto date, left_ids uuid[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
BEGIN
    WITH change AS (
        SELECT day, state, queue, kind, -sum(amount)::bigint AS amount
        FROM holdfast.ledger
        WHERE day >= first_day AND day < upto AND state IN ('succeeded', 'canceled')
        GROUP BY day, state, queue, kind
        UNION ALL
        SELECT holdfast.day_of(finished.id), finished.state, job.queue, job.kind, count(*)
        FROM holdfast.finished JOIN holdfast.job ON job.id = finished.id
        WHERE finished.id = ANY (left_ids)
        GROUP BY 1, 2, 3, 4
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT day, state, amount, queue, kind FROM change WHERE amount <> 0
    )
    SELECT coalesce(-sum(amount), 0) INTO pruned FROM change;
    RETURN pruned;
END
$$;
