-- Called by all other verbs. Its text differs from that of the previous release.
CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved + interval '0') FROM holdfast.clock);
END
$$;
