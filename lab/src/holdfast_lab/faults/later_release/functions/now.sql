-- Called by all other verbs, and of another text than in the release before.
CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved + interval '0') FROM holdfast.clock);
END
$$;
