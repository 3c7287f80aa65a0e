-- Everything that the drop of a partition needs, in the order in which all other statements take it: parents first. While it
-- waits for one lock, later transactions wait behind it, so all locks share one time limit, which is lock_timeout.
-- A handler's transaction may have one of these tables and want another. It looks for a deadlock when it has waited for
-- deadlock_timeout, and would be the one that fails. So after nine tenths of that time this waits for no second lock any more.
CREATE OR REPLACE FUNCTION holdfast.lock_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    upto timestamptz := clock_timestamp() + least(current_setting('lock_timeout')::interval,
                                                  0.9 * current_setting('deadlock_timeout')::interval);
    part text;
    is_late boolean := false;
BEGIN
    -- The default partitions too: a detach locks them.
    FOREACH part IN ARRAY ARRAY['job', 'finished', 'job_other', 'finished_other',
                                'job_' || to_char(day, 'YYYYMMDD'), 'finished_' || to_char(day, 'YYYYMMDD')] LOOP
        EXECUTE format('LOCK TABLE ONLY holdfast.%I IN ACCESS EXCLUSIVE MODE %s', part, CASE WHEN is_late THEN 'NOWAIT' END);
        is_late := clock_timestamp() >= upto;
        PERFORM set_config('lock_timeout', greatest(1, round(1000 * extract(epoch FROM upto - clock_timestamp())))::text, true);
    END LOOP;
END
$$;
