-- A dead letter outlives its day, and with it the row in `job` that would make its id a duplicate. Ids of dropped days
-- go to the default partition, so only rows that go there need another check. A repeated call with the key of the dead
-- letter gets neither an error nor a second job (is_repeated).
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
