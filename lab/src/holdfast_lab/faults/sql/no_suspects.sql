-- Never make a job a suspect, for comparison.
DO $$
BEGIN
    CREATE FUNCTION holdfast.acquit() RETURNS trigger LANGUAGE plpgsql AS $acquit$
    BEGIN
        NEW.suspicion := 0;
        NEW.is_suspect := false;
        RETURN NEW;
    END
    $acquit$;
    CREATE TRIGGER acquit BEFORE INSERT ON holdfast.ready FOR EACH ROW WHEN (NEW.suspicion > 0)
        EXECUTE FUNCTION holdfast.acquit();
END
$$
