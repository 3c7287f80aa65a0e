-- A dead letter outlives its day, and with that the row of `job` by which its id would be refused. Ids of days that were dropped
-- go to the default partition, so that only what goes there needs another look. A repeated call, with the key of the dead
-- letter, gets no error and no second job (is_repeated).
CREATE OR REPLACE FUNCTION holdfast.refuse_dead_letter() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    dead holdfast.dead_letter;
BEGIN
    SELECT * INTO dead FROM holdfast.dead_letter WHERE dead_letter.id = NEW.id;
    IF NOT FOUND THEN
        RETURN NEW;
    ELSIF dead.key = NEW.key AND dead.tenant = NEW.tenant AND dead.kind = NEW.kind THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'job % exists already', NEW.id
        USING ERRCODE = 'unique_violation', DETAIL = format('Key (id)=(%s) already exists.', NEW.id);
END
$$;
