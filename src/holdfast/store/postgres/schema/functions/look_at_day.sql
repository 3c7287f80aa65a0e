-- The partitions of job and finished that begin on a day are dropped after what must stay was moved out: jobs that are ready or leased, and
-- those that finished within the retention. That takes two statements of one transaction: `look_at_day`, which may take long
-- and disturbs nothing, and `drop_day`, behind whose lock everything waits. Answers: droppable, then dropped; locked (another
-- transaction is at work in these tables); changed (a job of the day was finished or retried meanwhile); crowded (too much
-- must stay to be moved behind a lock); slow (the statement's time was over); busy.
--
-- Nothing is lost, because
-- - every transaction that reads or writes a job holds a lock on `job` or `finished` until it ends, so with both locked
--   exclusively nothing is under way, and a statement sees all that was committed (its snapshot is taken after the lock);
-- - a claim that waited for the lock takes its snapshot afterwards as well, and finds the moved rows. Under repeatable read it
--   does not: its snapshot is older. So the rows of ready and lease are written anew, which makes such a claim fail;
-- - the jobs that finished within the retention are looked for before the lock, because that is a scan of the day. Its rows
--   of the ledger are only added to while compaction is locked out: the same number as before means that no job of the day
--   has become final, or live again, since.
CREATE OR REPLACE FUNCTION holdfast.look_at_day(day date, retention interval, at_most integer, most_bytes bigint)
RETURNS TABLE (outcome text, entries bigint, recent uuid[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    finished_part text := format('holdfast.%I', 'finished_' || to_char(day, 'YYYYMMDD'));
    live uuid[];
BEGIN
    IF NOT holdfast.try_chore('prune_jobs') OR NOT holdfast.try_chore('compact_counts') THEN
        outcome := 'busy';
    ELSIF NOT holdfast.is_past(day, retention) OR to_regclass(finished_part) IS NULL THEN
        outcome := 'changed';
    ELSE
        SELECT count(*) INTO entries FROM holdfast.ledger WHERE ledger.day >= day AND ledger.day < holdfast.part_end(day);
        EXECUTE format('SELECT ARRAY(SELECT id FROM %s WHERE finished_at >= $1 LIMIT $2)', finished_part)
            INTO recent USING holdfast.now() - retention, at_most + 1;
        live := holdfast.live_ids(day, at_most + 1);
        outcome := CASE WHEN holdfast.is_too_much(day, live || recent, at_most, most_bytes)
                        THEN 'crowded' ELSE 'droppable' END;
    END IF;
    RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION holdfast.look_at_day FROM PUBLIC;
