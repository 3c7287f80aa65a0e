-- Who waits for work, so that nobody is notified while nobody does: NOTIFY makes transactions commit one after the other.
-- In real time, not by the clock that tests move: it is about processes, not about jobs. Unlogged: after a crash of the
-- server every listener connects and registers again.
CREATE UNLOGGED TABLE holdfast.sleeper (
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL
);
-- What a renewal left dead ended earlier: in this order a look does not walk over it while a pinned snapshot keeps it.
-- The only index, lest a planner that believes in a tiny table takes another one and walks over all. (Below some 35
-- pages it may rather read them all, which takes less than 0.1 ms.)
CREATE INDEX sleeper_until ON holdfast.sleeper (queue, until);

-- Wakes those who sleep on these queues, when the transaction commits; the name of the channel has a twin in
-- wake/postgres.py. PostgreSQL sends equal notifications of one transaction once, so several sleepers do no harm here.
-- Enqueuing has the same statement written out (sql/enqueue.sql, holdfast.enqueue): the call alone would take 20 µs.
CREATE FUNCTION holdfast.ring(queues text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM pg_notify('holdfast_' || md5('holdfast.wake'), sleeper.queue)
    FROM holdfast.sleeper WHERE sleeper.queue = ANY (queues) AND sleeper.until > statement_timestamp();
END
$$;
