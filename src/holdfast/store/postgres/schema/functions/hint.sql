-- Sends a NOTIFY on commit if possible. A wake-up is only a hint, because polling finds the work as well. PostgreSQL
-- discovers only on commit that its notification queue is full, and then the transaction fails. So nothing is sent once
-- the queue is half full, which is still far from full for any transaction that passed this check. A role that may not
-- notify sends nothing either.
CREATE OR REPLACE FUNCTION holdfast.hint(channel text, content text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify(channel, content);
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;
