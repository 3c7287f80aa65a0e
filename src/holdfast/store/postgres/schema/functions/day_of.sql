-- The day of an id, as used in the ledger. Ids that are not UUIDv7 can fall on any day; the bounds keep those days few.
CREATE OR REPLACE FUNCTION holdfast.day_of(id uuid) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN id >= holdfast.first_id(timestamptz '2000-01-01 00:00:00+00')
                 AND id < holdfast.first_id(timestamptz '2100-01-01 00:00:00+00')
                THEN date '1970-01-01'
                     + (('x' || encode(substring(uuid_send(id) FOR 6), 'hex'))::bit(48)::bigint / 86400000)::integer
                ELSE date '1970-01-01' END
$$;
