-- Scans the default partitions under a lock that blocks only vacuum; the lock timeout is long enough for a vacuum to be
-- canceled. Returns false if they hold such an id.
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
