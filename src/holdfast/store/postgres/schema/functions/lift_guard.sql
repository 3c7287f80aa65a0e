-- Removes the guard from the default partitions, including one left behind by a process that died.
CREATE OR REPLACE FUNCTION holdfast.lift_guard() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '400ms' AS $$
DECLARE
    other regclass;
BEGIN
    FOR other IN
        SELECT conrelid::regclass FROM pg_constraint
        WHERE conrelid IN ('holdfast.job_other'::regclass, 'holdfast.finished_other'::regclass) AND conname = 'guard'
        ORDER BY conrelid::regclass::text DESC
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT guard', other);
    END LOOP;
END
$$;
REVOKE ALL ON FUNCTION holdfast.lift_guard FROM PUBLIC;
