-- A table that nobody knew, a function that everybody calls all the time, made anew, and one that only the later release
-- calls.
CREATE TABLE holdfast.zone (name text PRIMARY KEY, moved interval NOT NULL DEFAULT '0');
CREATE FUNCTION holdfast.later(name text) RETURNS interval LANGUAGE sql STABLE AS $$
    SELECT moved FROM holdfast.zone WHERE zone.name = later.name
$$;
CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved + interval '0') FROM holdfast.clock);
END
$$;
