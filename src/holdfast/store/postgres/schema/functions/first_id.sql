-- The lowest UUIDv7 of a given time.
CREATE OR REPLACE FUNCTION holdfast.first_id(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;
