-- One partition of job and finished per day, both or neither. A day whose ids already went to the default partition stays
-- there, and its jobs are pruned one by one. Null: another session is adding partitions.
CREATE OR REPLACE FUNCTION holdfast.add_partitions(first_day date, days integer) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
    day date;
    first uuid;
    upto uuid;
    parent text;
    part text;
    added integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast.add_partitions', 0)) THEN
        RETURN NULL;
    ELSIF holdfast.default_is_large() THEN
        RETURN 0;
    END IF;
    FOR day IN SELECT first_day + number FROM generate_series(0, days - 1) AS number LOOP
        first := holdfast.first_id(day::timestamp AT TIME ZONE 'UTC');
        upto := holdfast.first_id((day + 1)::timestamp AT TIME ZONE 'UTC');
        CONTINUE WHEN to_regclass(format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD'))) IS NOT NULL
            OR EXISTS (SELECT FROM holdfast.job_other WHERE id >= first AND id < upto)
            OR EXISTS (SELECT FROM holdfast.finished_other WHERE id >= first AND id < upto);
        BEGIN
            FOREACH parent IN ARRAY ARRAY['job', 'finished'] LOOP
                part := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
                EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                               part, parent);
                EXECUTE format('ALTER TABLE holdfast.%I ATTACH PARTITION holdfast.%I FOR VALUES FROM (%L) TO (%L)',
                               parent, part, first, upto);
            END LOOP;
            added := added + 2;
        EXCEPTION WHEN check_violation OR lock_not_available OR duplicate_table THEN
            NULL;
        END;
    END LOOP;
    RETURN added;
END
$$;
