-- The partitions of job and finished that begin on a day are dropped after moving out what must stay: jobs that are
-- ready or leased, and jobs that finished within the retention. That takes two statements in one transaction:
-- `look_at_day`, which may take long and disturbs nothing, and `drop_day`, which makes everything wait behind its lock.
-- Outcomes: droppable, then dropped; locked (another transaction is using these tables); changed (a job of the day was
-- finished or retried meanwhile); crowded (too much must stay to move it under a lock); referenced (a foreign key of
-- another table refers to jobs, and the day still has some); slow (the statement ran out of time); busy.
--
-- Nothing is lost, because
-- - every transaction that reads or writes a job holds a lock on `job` or `finished` until it ends. With both locked
--   exclusively, none is in progress, and a statement sees everything committed (its snapshot is taken after the lock);
-- - a claim that waited for the lock also takes its snapshot afterward and finds the moved rows. Under repeatable read,
--   it does not, because its snapshot is older. So the rows of ready and lease are rewritten, which makes such a claim
--   fail;
-- - jobs that finished within the retention are found before the lock, because that takes a scan of the day. While
--   compaction is locked out, the day's ledger rows only grow in number: an unchanged count means that no job of the day
--   has become final, or live again, since.
CREATE OR REPLACE FUNCTION holdfast.look_at_day(day date, retention interval, at_most integer, most_bytes bigint)
RETURNS TABLE (outcome text, entries bigint, recent uuid[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    job_part text := format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD'));
    finished_part text := format('holdfast.%I', 'finished_' || to_char(day, 'YYYYMMDD'));
    live uuid[];
BEGIN
    IF NOT holdfast.try_chore('prune_jobs') OR NOT holdfast.try_chore('compact_counts') THEN
        outcome := 'busy';
    ELSIF (SELECT count(*) FROM pg_class WHERE oid IN (to_regclass(job_part), to_regclass(finished_part))) < 2 THEN
        -- to_regclass alone may still find partitions that another process has just dropped.
        outcome := 'changed';
    ELSIF NOT coalesce(holdfast.part_end(day) > day, false) THEN
        RAISE EXCEPTION 'the bounds of the partitions of % are not what Holdfast makes', day USING ERRCODE = 'HF002';
    ELSIF NOT holdfast.is_past(day, retention) THEN
        outcome := 'changed';
    ELSIF EXISTS (
        SELECT FROM pg_constraint
        WHERE contype = 'f' AND confrelid IN ('holdfast.job'::regclass, 'holdfast.finished'::regclass,
                                              to_regclass(job_part), to_regclass(finished_part))
    ) AND NOT holdfast.is_empty_day(day) THEN
        -- PostgreSQL would look for references while everything waits behind the lock, and refuse if there is one.
        outcome := 'referenced';
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
