-- Merges many rows of a group into one. A single statement deletes and inserts, so every snapshot sees the same sums,
-- and rows appended meanwhile stay. `last_number` is where to continue, or null at the end.
CREATE OR REPLACE FUNCTION holdfast.compact_ledger(after bigint, upto bigint, at_most integer)
RETURNS TABLE (outcome text, merged bigint, last_number bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT holdfast.try_chore('compact_counts') THEN
        RETURN QUERY SELECT 'busy', 0::bigint, NULL::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH walked AS MATERIALIZED (
        SELECT ledger.* FROM holdfast.ledger WHERE ledger.number > after AND ledger.number <= upto
        ORDER BY ledger.number LIMIT at_most
    ),
    grouped AS MATERIALIZED (
        SELECT walked.number, count(*) OVER same AS rows, sum(walked.amount) OVER same AS amount
        FROM walked WINDOW same AS (PARTITION BY walked.day, walked.state, walked.queue, walked.kind)
    ),
    gone AS (
        DELETE FROM holdfast.ledger USING grouped
        WHERE ledger.number = grouped.number AND (grouped.rows > 1 OR grouped.amount = 0)
        RETURNING ledger.day, ledger.state, ledger.amount, ledger.queue, ledger.kind
    ),
    added AS (
        INSERT INTO holdfast.ledger AS new_row (day, state, amount, queue, kind)
        SELECT gone.day, gone.state, sum(gone.amount), gone.queue, gone.kind
        FROM gone GROUP BY gone.day, gone.state, gone.queue, gone.kind
        HAVING sum(gone.amount) <> 0
        RETURNING new_row.number
    )
    SELECT 'pruned', (SELECT count(*) FROM gone) - (SELECT count(*) FROM added),
           (SELECT walked.number FROM walked ORDER BY walked.number OFFSET at_most - 1 LIMIT 1);
END
$$;
