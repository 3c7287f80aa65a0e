-- Drops the partitions that begin on a day, in the same transaction as `look_at_day` and with its answer. Runs only
-- under read committed. The caller limits the statement's time; a canceled statement counts as one of the outcomes and
-- releases the locks at once. `patience` is how long it may wait for its locks, while everything else waits behind it.
CREATE OR REPLACE FUNCTION holdfast.drop_day(
    day date, entries bigint, recent uuid[], at_most integer, most_bytes bigint, patience interval DEFAULT '100ms'
) RETURNS TABLE (outcome text, pruned bigint, moved bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    job_part text := format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD'));
    finished_part text := format('holdfast.%I', 'finished_' || to_char(day, 'YYYYMMDD'));
    upto date;
    live uuid[];
BEGIN
    pruned := 0;
    moved := 0;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'drop_day: only under read committed does a statement see what was committed before its lock';
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', round(1000 * extract(epoch FROM patience))::text, true);
        PERFORM holdfast.lock_day(day);
        upto := holdfast.part_end(day);
        IF NOT coalesce(upto > day, false) THEN
            RAISE EXCEPTION 'the bounds of the partitions of % are not what Holdfast makes', day USING ERRCODE = 'HF002';
        END IF;
        live := holdfast.live_ids(day, at_most + 1);
        IF (SELECT count(*) FROM holdfast.ledger WHERE ledger.day >= day AND ledger.day < upto) <> entries
           OR holdfast.is_too_much(day, live || recent, at_most, most_bytes) THEN
            RAISE EXCEPTION 'the day has changed' USING ERRCODE = 'HF003';
        END IF;
        EXECUTE format('ALTER TABLE holdfast.job DETACH PARTITION %s', job_part);
        EXECUTE format('ALTER TABLE holdfast.finished DETACH PARTITION %s', finished_part);
        EXECUTE format('INSERT INTO holdfast.job SELECT * FROM %s WHERE id = ANY ($1)', job_part) USING live || recent;
        GET DIAGNOSTICS moved = ROW_COUNT;
        EXECUTE format('INSERT INTO holdfast.finished SELECT * FROM %s WHERE id = ANY ($1)', finished_part) USING recent;
        -- Locked rows belong to transactions that do not read jobs; waiting for them could deadlock.
        UPDATE holdfast.ready SET attempt = ready.attempt
        WHERE ready.id IN (SELECT each.id FROM holdfast.ready AS each WHERE each.id = ANY (live) FOR UPDATE SKIP LOCKED);
        UPDATE holdfast.lease SET attempt = lease.attempt
        WHERE lease.id IN (SELECT each.id FROM holdfast.lease AS each WHERE each.id = ANY (live) FOR UPDATE SKIP LOCKED);
        UPDATE holdfast.key SET job_id = key.job_id
        WHERE key.ctid IN (SELECT each.ctid FROM holdfast.key AS each
                           WHERE each.job_id = ANY (live || recent) FOR UPDATE SKIP LOCKED);
        pruned := holdfast.enter_pruned_days(day, upto, recent);
        EXECUTE format('DROP TABLE %s, %s', job_part, finished_part);
        outcome := 'dropped';
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            outcome := 'locked';
        WHEN query_canceled THEN
            outcome := 'slow';
        WHEN SQLSTATE 'HF003' OR undefined_table THEN
            outcome := 'changed';
    END;
    IF outcome <> 'dropped' THEN
        pruned := 0;
        moved := 0;
    END IF;
    RETURN NEXT;
END
$$;
REVOKE ALL ON FUNCTION holdfast.drop_day FROM PUBLIC;
