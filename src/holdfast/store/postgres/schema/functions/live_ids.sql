-- The jobs of a partition that are ready or leased, at most so many of each.
CREATE OR REPLACE FUNCTION holdfast.live_ids(day date, at_most integer) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    first uuid := holdfast.first_id(day::timestamp AT TIME ZONE 'UTC');
    upto uuid := holdfast.first_id(holdfast.part_end(day)::timestamp AT TIME ZONE 'UTC');
BEGIN
    RETURN ARRAY(SELECT id FROM holdfast.ready WHERE id >= first AND id < upto LIMIT at_most)
        || ARRAY(SELECT id FROM holdfast.lease WHERE id >= first AND id < upto LIMIT at_most);
END
$$;
