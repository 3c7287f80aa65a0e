-- Makes a UUIDv7 for producers that provide no id.
CREATE OR REPLACE FUNCTION holdfast.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
            || substr(random_part, 14, 3) || substr(random_part, 17, 16))::uuid
    FROM (SELECT replace(gen_random_uuid()::text, '-', '') AS random_part) AS random
$$;
