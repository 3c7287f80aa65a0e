-- Notifies processes that wait for jobs which may just have become final. Jobs that are still live ring for no process.
-- Every function that makes jobs final calls this in the same transaction. It is not a trigger with a transition table,
-- because that crashes PostgreSQL 18 (docs/decisions/0008-waiting.md). Each holder has its own channel, which
-- wake/final.py also names, and hears of its jobs once per statement; 200 ids fit into a notification.
CREATE OR REPLACE FUNCTION holdfast.ring_waiters(ids uuid[]) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
BEGIN
    IF EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp()) THEN
        PERFORM holdfast.hint('holdfast_waiter_' || replace(part.holder::text, '-', ''), string_agg(part.id::text, ','))
        FROM (
            -- OFFSET 0 keeps each of these a lookup by key: a join planned while the table is empty would read the
            -- whole table. MATERIALIZED, because few of the jobs have waiters.
            WITH waited AS MATERIALIZED (
                SELECT waiter.holder, given.id FROM unnest(ids) AS given (id)
                CROSS JOIN LATERAL (
                    SELECT waiter.holder FROM holdfast.waiter WHERE waiter.job_id = given.id OFFSET 0
                ) AS waiter
            )
            SELECT waited.holder, waited.id, (row_number() OVER (PARTITION BY waited.holder) - 1) / 200 AS number
            FROM waited
            WHERE NOT EXISTS (SELECT FROM holdfast.lease WHERE lease.id = waited.id OFFSET 0)
              AND NOT EXISTS (SELECT FROM holdfast.ready WHERE ready.id = waited.id OFFSET 0)
        ) AS part
        GROUP BY part.holder, part.number;
    END IF;
END
$$;
