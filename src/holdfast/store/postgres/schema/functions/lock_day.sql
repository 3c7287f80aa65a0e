-- Everything that a drop needs, in the order in which all other statements take it: parents first. While it waits for one
-- lock, later transactions wait behind it, so all locks share one time limit: each wait gets what is left of it.
CREATE OR REPLACE FUNCTION holdfast.lock_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    upto timestamptz := clock_timestamp() + current_setting('lock_timeout')::interval;
    part text;
BEGIN
    -- The default partitions too: a detach locks them.
    FOREACH part IN ARRAY ARRAY['job', 'finished', 'job_other', 'finished_other',
                                'job_' || to_char(day, 'YYYYMMDD'), 'finished_' || to_char(day, 'YYYYMMDD')] LOOP
        PERFORM set_config('lock_timeout', greatest(1, round(1000 * extract(epoch FROM upto - clock_timestamp())))::text, true);
        EXECUTE format('LOCK TABLE ONLY holdfast.%I IN ACCESS EXCLUSIVE MODE', part);
    END LOOP;
END
$$;
