-- PostgreSQL skips scanning the default partition for new partitions if a valid constraint proves that it holds no ids
-- of their days. Such a guard is added in a moment, checked by a scan that blocks nothing (check_guard), used
-- (add_partitions) and removed again (lift_guard), each in a separate transaction. Meanwhile the default partition
-- refuses these ids, so the guard covers only future days, from the day after tomorrow on. Returns the days of the
-- guard, or null if none is needed.
CREATE OR REPLACE FUNCTION holdfast.guard_default(days integer, width integer, OUT day date, OUT upto date)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    today date := (holdfast.now() AT TIME ZONE 'UTC')::date;
    other text;
BEGIN
    FOR day IN SELECT today + number FROM generate_series(2, days - 1) AS number LOOP
        CONTINUE WHEN EXISTS (
            SELECT FROM holdfast.partition_days() AS part WHERE part.day <= guard_default.day AND part.upto > guard_default.day);
        -- To the end of the last partition that begins on one of these days.
        upto := holdfast.free_until(day, day + width * ((today + days - day + width - 1) / width));
        EXIT WHEN upto > day;
    END LOOP;
    IF upto IS NULL OR upto <= day THEN
        day := NULL;
        upto := NULL;
        RETURN;
    END IF;
    FOREACH other IN ARRAY ARRAY['job_other', 'finished_other'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I ADD CONSTRAINT guard CHECK (id < %L OR id >= %L) NOT VALID', other,
                       holdfast.first_id(day::timestamp AT TIME ZONE 'UTC'),
                       holdfast.first_id(upto::timestamp AT TIME ZONE 'UTC'));
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION holdfast.guard_default FROM PUBLIC;
