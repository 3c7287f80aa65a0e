-- Deletes every job, key and run. DELETE, not TRUNCATE, which creates a new file for each of many small tables. For
-- tests.
DO $$
DECLARE
    each regclass;
BEGIN
    FOR each IN
        SELECT oid FROM pg_class
        WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'holdfast.migration'::regclass)
          AND relkind IN ('r', 'p') AND NOT relispartition
          AND relname NOT IN ('migration', 'installed_function', 'clock', 'schedule', 'subscription')
    LOOP
        EXECUTE format('DELETE FROM %s', each);
    END LOOP;
END
$$
