-- Adds partitions of job and finished in pairs, each `width` days wide, until the given days are covered. Each one
-- begins where the previous one ends. If ids of a day already went to the default partition, that day stays there, and
-- its jobs are pruned one by one. Returns null if another session is adding partitions. Like every function that
-- changes tables, it runs as its owner, so a worker's role need not own them.
CREATE OR REPLACE FUNCTION holdfast.add_partitions(first_day date, days integer, width integer DEFAULT 1) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    start date := first_day;
    upto date;
    parent text;
    part text;
    added integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast.add_partitions', 0)) THEN
        RETURN NULL;
    ELSIF holdfast.default_is_large() AND NOT holdfast.is_guarded() THEN
        RETURN 0;
    END IF;
    WHILE start < first_day + days LOOP
        SELECT there.upto INTO upto FROM holdfast.partition_days() AS there WHERE there.day <= start AND there.upto > start;
        IF NOT FOUND THEN
            upto := holdfast.free_until(start, start + width);
            IF upto > start THEN
                BEGIN
                    FOREACH parent IN ARRAY ARRAY['job', 'finished'] LOOP
                        part := format('%s_%s', parent, to_char(start, 'YYYYMMDD'));
                        EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                                       part, parent);
                        EXECUTE format('ALTER TABLE holdfast.%I ATTACH PARTITION holdfast.%I FOR VALUES FROM (%L) TO (%L)',
                                       parent, part, holdfast.first_id(start::timestamp AT TIME ZONE 'UTC'),
                                       holdfast.first_id(upto::timestamp AT TIME ZONE 'UTC'));
                    END LOOP;
                    added := added + 2;
                EXCEPTION WHEN check_violation OR lock_not_available OR duplicate_table THEN
                    NULL;
                END;
            END IF;
        END IF;
        start := greatest(upto, start + 1);
    END LOOP;
    RETURN added;
END
$$;
REVOKE ALL ON FUNCTION holdfast.add_partitions FROM PUBLIC;
