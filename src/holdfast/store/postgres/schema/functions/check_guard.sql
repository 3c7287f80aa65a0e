-- Scans the default partitions behind a lock that lets everything but a vacuum pass; the wait is long enough to end one. False:
-- they hold such an id.
CREATE OR REPLACE FUNCTION holdfast.check_guard() RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    ALTER TABLE holdfast.job_other VALIDATE CONSTRAINT guard;
    ALTER TABLE holdfast.finished_other VALIDATE CONSTRAINT guard;
    RETURN true;
EXCEPTION WHEN check_violation THEN
    RETURN false;
END
$$;
REVOKE ALL ON FUNCTION holdfast.check_guard FROM PUBLIC;
