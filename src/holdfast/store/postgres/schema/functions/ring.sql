-- Wakes processes that sleep on these queues, when the transaction commits; wake/postgres.py has the channel's name too.
-- PostgreSQL sends equal notifications of one transaction once, so several sleepers do no harm here.
-- Enqueuing has the same statement written out (sql/enqueue_many.sql, holdfast.enqueue): the call alone would take 20 µs.
CREATE OR REPLACE FUNCTION holdfast.ring(queues text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM holdfast.hint('holdfast_' || md5('holdfast.wake'), sleeper.queue)
    FROM holdfast.sleeper WHERE sleeper.queue = ANY (queues) AND sleeper.until > statement_timestamp();
END
$$;
