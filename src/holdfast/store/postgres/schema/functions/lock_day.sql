-- Takes every lock that dropping a partition needs, in the order in which all other statements take them: parents
-- first. While it waits for a lock, later transactions wait behind it, so all locks share one time limit: lock_timeout.
-- A handler's transaction may hold one of these tables and want another. After deadlock_timeout it checks for a
-- deadlock and would be the one to fail. So after nine tenths of that time, this function no longer waits for a further
-- lock.
CREATE OR REPLACE FUNCTION holdfast.lock_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    upto timestamptz := clock_timestamp() + least(current_setting('lock_timeout')::interval,
                                                  0.9 * current_setting('deadlock_timeout')::interval);
    part text;
    is_late boolean := false;
BEGIN
    -- Include the default partitions, because a detach locks them.
    FOREACH part IN ARRAY ARRAY['job', 'finished', 'job_other', 'finished_other',
                                'job_' || to_char(day, 'YYYYMMDD'), 'finished_' || to_char(day, 'YYYYMMDD')] LOOP
        EXECUTE format('LOCK TABLE ONLY holdfast.%I IN ACCESS EXCLUSIVE MODE %s', part, CASE WHEN is_late THEN 'NOWAIT' END);
        is_late := clock_timestamp() >= upto;
        PERFORM set_config('lock_timeout', greatest(1, round(1000 * extract(epoch FROM upto - clock_timestamp())))::text, true);
    END LOOP;
END
$$;
