-- Takes the lock of a maintenance chore for the caller's transaction. Every process does maintenance, but only one at a
-- time does each chore; the others get the outcome `busy`.
CREATE OR REPLACE FUNCTION holdfast.try_chore(chore text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_try_advisory_xact_lock(hashtextextended('holdfast.maintenance ' || chore, 0))
$$;
