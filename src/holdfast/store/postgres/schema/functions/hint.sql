-- NOTIFY when the transaction commits, if that is possible: a wake-up is a hint, and polling finds the work as well.
-- PostgreSQL finds out only at the commit that its queue of notifications is full, and then the transaction fails. So none is
-- sent from half full on, which is far from full for any transaction that has asked before. Nor is one sent by a role that may
-- not.
CREATE OR REPLACE FUNCTION holdfast.hint(channel text, content text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, content);
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;
