-- Converts a lock's text to the number that PostgreSQL takes. Documented, so other programs can take the same lock.
CREATE OR REPLACE FUNCTION holdfast.lock_key(lock text) RETURNS bigint LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substr(sha256(convert_to(lock, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
$$;
