-- The initial contents of a fresh schema.
INSERT INTO holdfast.clock DEFAULT VALUES;
SELECT holdfast.add_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date, 8);
CREATE TRIGGER refuse_dead_letter BEFORE INSERT ON holdfast.job_other
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_dead_letter();
