-- Takes an inline runner's lock for the calling transaction, or returns false at once. That transaction then waits
-- until the app's function is done, so a server's timeout for idle transactions must not end it. A client that vanishes
-- silently must not keep the lock for the hours that TCP would allow. The server notices after 20 seconds; the client
-- gives up sooner (see lock.py), so two never run at the same time.
CREATE OR REPLACE FUNCTION holdfast.take_lock(lock text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config(wanted.name, wanted.setting, true)
    FROM (VALUES ('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'),
                 ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
                 ('tcp_user_timeout', '20000')) AS wanted (name, setting)
    -- Not every PostgreSQL version has all of them.
    JOIN pg_settings USING (name);
    RETURN pg_try_advisory_xact_lock(holdfast.lock_key(lock));
END
$$;
