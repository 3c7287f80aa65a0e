-- Unknown to the previous release.
CREATE OR REPLACE FUNCTION holdfast.later(name text) RETURNS interval LANGUAGE sql STABLE AS $$
    SELECT moved FROM holdfast.zone WHERE zone.name = later.name
$$;
