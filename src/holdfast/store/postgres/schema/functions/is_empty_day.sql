-- Whether the partitions that begin on this day are empty.
CREATE OR REPLACE FUNCTION holdfast.is_empty_day(day date) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    found boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM holdfast.%I) OR EXISTS (SELECT FROM holdfast.%I)',
                   'job_' || to_char(day, 'YYYYMMDD'), 'finished_' || to_char(day, 'YYYYMMDD')) INTO found;
    RETURN NOT found;
END
$$;
