-- Takes the lock of a chore of maintenance for the caller's transaction. Every process does maintenance, and each chore is
-- done by one of them at a time; the others get the answer `busy`.
CREATE OR REPLACE FUNCTION holdfast.try_chore(chore text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_try_advisory_xact_lock(hashtextextended('holdfast.maintenance ' || chore, 0))
$$;
