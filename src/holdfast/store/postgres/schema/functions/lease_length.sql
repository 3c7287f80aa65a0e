-- The length of the longest lease that this claim asked for (domain/claim.py).
CREATE OR REPLACE FUNCTION holdfast.lease_length(claim uuid) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('x' || substr(claim::text, 20, 4))::bit(16)::integer * interval '1 second'
$$;
