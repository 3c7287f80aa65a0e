-- What every candidate shares: a movable clock, one sequence of fences, ids that carry their time.
DROP SCHEMA IF EXISTS holdfast CASCADE;
CREATE SCHEMA holdfast;
CREATE SEQUENCE holdfast.fence;

CREATE TABLE holdfast.clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    frozen_at timestamptz,
    moved interval NOT NULL DEFAULT '0'
);
INSERT INTO holdfast.clock DEFAULT VALUES;

CREATE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$SELECT coalesce(frozen_at, clock_timestamp() + moved) FROM holdfast.clock$$;

-- The smallest UUIDv7 of a moment: the bounds of the partitions.
CREATE FUNCTION holdfast.first_id(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS
$$SELECT rpad(lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0'), 32, '0')::uuid$$;
