-- The jobs of a partition that are ready or leased, up to a limit for each. The search runs between the partition's
-- first and last id, so none is overlooked whatever the partition's bounds are.
CREATE OR REPLACE FUNCTION holdfast.live_ids(day date, at_most integer) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    first uuid;
    last uuid;
BEGIN
    EXECUTE format('SELECT (SELECT id FROM holdfast.%1$I ORDER BY id LIMIT 1), (SELECT id FROM holdfast.%1$I ORDER BY id DESC LIMIT 1)',
                   'job_' || to_char(day, 'YYYYMMDD')) INTO first, last;
    RETURN ARRAY(SELECT id FROM holdfast.ready WHERE id >= first AND id <= last LIMIT at_most)
        || ARRAY(SELECT id FROM holdfast.lease WHERE id >= first AND id <= last LIMIT at_most);
END
$$;
