-- Maintenance. Every function takes the lock of its step for its own transaction, so that however many processes do upkeep,
-- each step is done by one of them at a time; the others are told `busy`. All times are the store's.

CREATE INDEX dead_letter_finished ON holdfast.dead_letter (finished_at);

-- When each step was last done, by whomever: no process repeats what another has just done.
CREATE TABLE holdfast.upkeep (
    step text NOT NULL PRIMARY KEY,
    done_at timestamptz NOT NULL
);

CREATE FUNCTION holdfast.try_step(step text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_try_advisory_xact_lock(hashtextextended('holdfast.upkeep ' || step, 0))
$$;

-- The days that have partitions of their own.
CREATE FUNCTION holdfast.partition_days() RETURNS SETOF date LANGUAGE sql STABLE AS $$
    SELECT to_date(substr(part.relname, 5), 'YYYYMMDD')
    FROM pg_inherits JOIN pg_class AS part ON part.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent = 'holdfast.job'::regclass AND part.relname ~ '^job_[0-9]{8}$'
    ORDER BY 1
$$;

-- A day can go when the whole of it is older than the retention.
CREATE FUNCTION holdfast.is_past(day date, retention interval) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT (day + 1)::timestamp AT TIME ZONE 'UTC' <= holdfast.now() - retention
$$;

-- A day's partitions of job and finished are dropped after what must stay was moved out: jobs that are ready or leased, and
-- those that finished within the retention. Two statements of one transaction: `look_at_day`, which may take long and
-- disturbs nobody, and `drop_day`, behind whose lock everybody waits. Answers: droppable, then dropped; locked (somebody is
-- at work in these tables); changed (a job of the day was finished or retried meanwhile); crowded (too much must stay to be
-- moved behind a lock); slow (the statement's time was over); busy.
--
-- Nothing is lost, because
-- - whoever reads or writes a job holds a lock on `job` or `finished` until its transaction ends, so with both locked
--   exclusively nothing is under way, and a statement sees all that was committed (its snapshot is taken after the lock);
-- - a claim that waited for the lock takes its snapshot afterwards as well, and finds the moved rows. Under repeatable read it
--   does not: its snapshot is older. So the rows of ready and lease are written anew, which makes such a claim fail;
-- - the jobs that finished within the retention are looked for before the lock, because that is a scan of the day. Its rows
--   of the ledger are only added to while compaction is locked out: as many as before means that no job of the day has become
--   final, or live again, since.
CREATE FUNCTION holdfast.look_at_day(day date, retention interval, at_most integer, most_bytes bigint)
RETURNS TABLE (outcome text, entries bigint, recent uuid[])
LANGUAGE plpgsql SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    finished_part text := format('holdfast.%I', 'finished_' || to_char(day, 'YYYYMMDD'));
    live uuid[];
BEGIN
    IF NOT holdfast.try_step('prune_jobs') OR NOT holdfast.try_step('compact_counts') THEN
        outcome := 'busy';
    ELSIF NOT holdfast.is_past(day, retention) OR to_regclass(finished_part) IS NULL THEN
        outcome := 'changed';
    ELSE
        SELECT count(*) INTO entries FROM holdfast.ledger WHERE ledger.day = day;
        EXECUTE format('SELECT ARRAY(SELECT id FROM %s WHERE finished_at >= $1 LIMIT $2)', finished_part)
            INTO recent USING holdfast.now() - retention, at_most + 1;
        live := holdfast.live_ids(day, at_most + 1);
        outcome := CASE WHEN holdfast.is_too_much(day, live || recent, at_most, most_bytes)
                        THEN 'crowded' ELSE 'droppable' END;
    END IF;
    RETURN NEXT;
END
$$;

-- In the transaction and with the answer of `look_at_day`. The caller bounds the statement's time; that a statement is
-- canceled is an answer like others, which gives the locks back at once.
CREATE FUNCTION holdfast.drop_day(day date, entries bigint, recent uuid[], at_most integer, most_bytes bigint)
RETURNS TABLE (outcome text, pruned bigint, moved bigint)
LANGUAGE plpgsql SET lock_timeout = '100ms' SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    job_part text := format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD'));
    finished_part text := format('holdfast.%I', 'finished_' || to_char(day, 'YYYYMMDD'));
    live uuid[];
BEGIN
    pruned := 0;
    moved := 0;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'drop_day: only under read committed does a statement see what was committed before its lock';
    END IF;
    BEGIN
        PERFORM holdfast.lock_day(day);
        live := holdfast.live_ids(day, at_most + 1);
        IF (SELECT count(*) FROM holdfast.ledger WHERE ledger.day = day) <> entries
           OR holdfast.is_too_much(day, live || recent, at_most, most_bytes) THEN
            RAISE EXCEPTION 'the day has changed' USING ERRCODE = 'HF003';
        END IF;
        EXECUTE format('ALTER TABLE holdfast.job DETACH PARTITION %s', job_part);
        EXECUTE format('ALTER TABLE holdfast.finished DETACH PARTITION %s', finished_part);
        EXECUTE format('INSERT INTO holdfast.job SELECT * FROM %s WHERE id = ANY ($1)', job_part) USING live || recent;
        GET DIAGNOSTICS moved = ROW_COUNT;
        EXECUTE format('INSERT INTO holdfast.finished SELECT * FROM %s WHERE id = ANY ($1)', finished_part) USING recent;
        -- Locked rows belong to transactions that do not look at jobs; waiting for them could be a deadlock.
        UPDATE holdfast.ready SET attempt = ready.attempt
        WHERE ready.id IN (SELECT each.id FROM holdfast.ready AS each WHERE each.id = ANY (live) FOR UPDATE SKIP LOCKED);
        UPDATE holdfast.lease SET attempt = lease.attempt
        WHERE lease.id IN (SELECT each.id FROM holdfast.lease AS each WHERE each.id = ANY (live) FOR UPDATE SKIP LOCKED);
        pruned := holdfast.enter_pruned_day(day, recent);
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

-- Everything that a drop needs, in the order in which everybody else takes it: parents first. While it waits for one lock,
-- whoever comes later waits behind it, so the time is one for all of them together: what is left of it is set anew each time.
CREATE FUNCTION holdfast.lock_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    upto timestamptz := clock_timestamp() + current_setting('lock_timeout')::interval;
    part text;
BEGIN
    -- The default partitions too: a detach locks them.
    FOREACH part IN ARRAY ARRAY['job', 'finished', 'job_other', 'finished_other',
                                'job_' || to_char(day, 'YYYYMMDD'), 'finished_' || to_char(day, 'YYYYMMDD')] LOOP
        PERFORM set_config('lock_timeout', greatest(1, round(1000 * extract(epoch FROM upto - clock_timestamp())))::text, true);
        EXECUTE format('LOCK TABLE ONLY holdfast.%I IN ACCESS EXCLUSIVE MODE', part);
    END LOOP;
END
$$;

-- Sizes are those in which values are stored: what lies in TOAST is not read for it.
CREATE FUNCTION holdfast.is_too_much(day date, ids uuid[], at_most integer, most_bytes bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    jobs bigint;
    results bigint;
BEGIN
    IF cardinality(ids) > at_most THEN
        RETURN true;
    END IF;
    EXECUTE format('SELECT sum(pg_column_size(payload) + coalesce(pg_column_size(headers), 0)) FROM holdfast.%I WHERE id = ANY ($1)',
                   'job_' || to_char(day, 'YYYYMMDD')) INTO jobs USING ids;
    EXECUTE format('SELECT sum(pg_column_size(result)) FROM holdfast.%I WHERE id = ANY ($1)',
                   'finished_' || to_char(day, 'YYYYMMDD')) INTO results USING ids;
    RETURN coalesce(jobs, 0) + coalesce(results, 0) > most_bytes;
END
$$;

CREATE FUNCTION holdfast.live_ids(day date, at_most integer) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    first uuid := holdfast.first_id(day::timestamp AT TIME ZONE 'UTC');
    upto uuid := holdfast.first_id((day + 1)::timestamp AT TIME ZONE 'UTC');
BEGIN
    RETURN ARRAY(SELECT id FROM holdfast.ready WHERE id >= first AND id < upto LIMIT at_most)
        || ARRAY(SELECT id FROM holdfast.lease WHERE id >= first AND id < upto LIMIT at_most);
END
$$;

-- Of a dropped day only these jobs are left; dead letters are counted on. Returns how many are gone.
CREATE FUNCTION holdfast.enter_pruned_day(pruned_day date, left_ids uuid[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    pruned bigint;
BEGIN
    WITH change AS (
        SELECT state, queue, kind, -sum(amount)::bigint AS amount
        FROM holdfast.ledger
        WHERE day = pruned_day AND state IN ('succeeded', 'canceled')
        GROUP BY state, queue, kind
        UNION ALL
        SELECT finished.state, job.queue, job.kind, count(*)
        FROM holdfast.finished JOIN holdfast.job ON job.id = finished.id
        WHERE finished.id = ANY (left_ids)
        GROUP BY finished.state, job.queue, job.kind
    ),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT pruned_day, state, amount, queue, kind FROM change WHERE amount <> 0
    )
    SELECT coalesce(-sum(amount), 0) INTO pruned FROM change;
    RETURN pruned;
END
$$;

-- For the default partition, and for days of which too much must stay: jobs that finished before the retention, one by one.
-- Walks the ids in order; `last_id` is where to go on, null at the end.
CREATE FUNCTION holdfast.prune_part(part text, retention interval, after uuid, at_most integer)
RETURNS TABLE (outcome text, pruned bigint, last_id uuid)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    finished_part text := format('holdfast.%I', 'finished_' || part);
BEGIN
    pruned := 0;
    IF NOT holdfast.try_step('prune_jobs') THEN
        outcome := 'busy';
    ELSIF to_regclass(finished_part) IS NULL THEN
        outcome := 'changed';
    ELSE
        outcome := 'pruned';
        EXECUTE replace($statement$
            WITH walked AS MATERIALIZED (
                SELECT part.id FROM finished_part AS part WHERE part.id > $1 ORDER BY part.id LIMIT $2
            ),
            old AS MATERIALIZED (
                SELECT walked.id FROM walked
                CROSS JOIN LATERAL (
                    SELECT FROM finished_part AS part
                    WHERE part.id = walked.id AND part.finished_at < $3
                    FOR UPDATE SKIP LOCKED
                ) AS part
            ),
            gone AS (
                DELETE FROM finished_part AS part USING old WHERE part.id = ANY (ARRAY[old.id])
                RETURNING part.id, part.state
            ),
            jobs AS (
                DELETE FROM holdfast.job USING gone WHERE job.id = ANY (ARRAY[gone.id])
                RETURNING job.id, gone.state, job.queue, job.kind
            ),
            keys AS (DELETE FROM holdfast.key USING gone WHERE key.job_id = ANY (ARRAY[gone.id])),
            errors AS (DELETE FROM holdfast.attempt_error USING gone WHERE attempt_error.job_id = ANY (ARRAY[gone.id])),
            notes AS (DELETE FROM holdfast.progress USING gone WHERE progress.job_id = ANY (ARRAY[gone.id])),
            entered AS (
                INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
                SELECT holdfast.day_of(jobs.id), jobs.state, -count(*), jobs.queue, jobs.kind
                FROM jobs GROUP BY 1, 2, 4, 5
            )
            SELECT (SELECT count(*) FROM gone),
                   (SELECT walked.id FROM walked ORDER BY walked.id OFFSET $2 - 1 LIMIT 1)
        $statement$, 'finished_part', finished_part)
            INTO pruned, last_id USING after, at_most, holdfast.now() - retention;
    END IF;
    RETURN NEXT;
END
$$;

-- What a dropped day leaves behind in one of the tables beside `job`: rows of jobs that are neither there nor dead letters.
-- Walks only over ids that are older than every partition.
CREATE FUNCTION holdfast.sweep(side text, after uuid, at_most integer)
RETURNS TABLE (outcome text, swept bigint, last_id uuid)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    first uuid := holdfast.first_id(coalesce((SELECT min(days.day) FROM holdfast.partition_days() AS days (day)),
                                             date '2100-01-01')::timestamp AT TIME ZONE 'UTC');
BEGIN
    swept := 0;
    IF NOT holdfast.try_step('prune_jobs') THEN
        outcome := 'busy';
    ELSE
        outcome := 'pruned';
        EXECUTE replace($statement$
            WITH walked AS MATERIALIZED (
                SELECT side.job_id FROM side_table AS side
                WHERE side.job_id > $1 AND side.job_id < $2 ORDER BY side.job_id LIMIT $3
            ),
            orphan AS MATERIALIZED (
                SELECT DISTINCT walked.job_id FROM walked
                WHERE NOT EXISTS (SELECT FROM holdfast.job WHERE job.id = ANY (ARRAY[walked.job_id]))
                  AND NOT EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ARRAY[walked.job_id]))
            ),
            gone AS (
                DELETE FROM side_table AS side USING orphan WHERE side.job_id = ANY (ARRAY[orphan.job_id])
                RETURNING side.job_id
            )
            SELECT (SELECT count(*) FROM gone),
                   (SELECT walked.job_id FROM walked ORDER BY walked.job_id OFFSET $3 - 1 LIMIT 1)
        $statement$, 'side_table', format('holdfast.%I', side))
            INTO swept, last_id USING after, first, at_most;
    END IF;
    RETURN NEXT;
END
$$;

CREATE FUNCTION holdfast.prune_dead_letters(retention interval, at_most integer)
RETURNS TABLE (outcome text, pruned bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz := holdfast.now() - retention;
BEGIN
    IF NOT holdfast.try_step('prune_dead_letters') THEN
        RETURN QUERY SELECT 'busy', 0::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH old AS MATERIALIZED (
        SELECT dead_letter.id FROM holdfast.dead_letter
        WHERE dead_letter.finished_at < cutoff
        ORDER BY dead_letter.finished_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM holdfast.dead_letter USING old WHERE dead_letter.id = ANY (ARRAY[old.id])
        RETURNING dead_letter.id, dead_letter.state, dead_letter.queue, dead_letter.kind
    ),
    jobs AS (DELETE FROM holdfast.job USING gone WHERE job.id = ANY (ARRAY[gone.id])),
    keys AS (DELETE FROM holdfast.key USING gone WHERE key.job_id = ANY (ARRAY[gone.id])),
    errors AS (DELETE FROM holdfast.attempt_error USING gone WHERE attempt_error.job_id = ANY (ARRAY[gone.id])),
    notes AS (DELETE FROM holdfast.progress USING gone WHERE progress.job_id = ANY (ARRAY[gone.id])),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), gone.state, -count(*), gone.queue, gone.kind FROM gone GROUP BY 1, 2, 4, 5
    )
    SELECT 'pruned', (SELECT count(*) FROM gone);
END
$$;

-- Walks the ids in order, which is nearly that of time, up to the first run that is too young: a walk reads little more than
-- it deletes. `last_id` is where to go on, null at the end.
CREATE FUNCTION holdfast.prune_runs(retention interval, after bigint, at_most integer)
RETURNS TABLE (outcome text, pruned bigint, last_id bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    cutoff timestamptz := holdfast.now() - retention;
BEGIN
    IF NOT holdfast.try_step('prune_runs') THEN
        RETURN QUERY SELECT 'busy', 0::bigint, NULL::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH walked AS MATERIALIZED (
        SELECT run.id, run.started_at FROM holdfast.run WHERE run.id > after ORDER BY run.id LIMIT at_most
    ),
    gone AS (
        DELETE FROM holdfast.run USING walked
        WHERE run.id = ANY (ARRAY[walked.id]) AND coalesce(run.finished_at, run.started_at) < cutoff
        RETURNING run.id
    )
    SELECT 'pruned', (SELECT count(*) FROM gone),
           CASE WHEN (SELECT bool_and(walked.started_at < cutoff) FROM walked)
                THEN (SELECT walked.id FROM walked ORDER BY walked.id OFFSET at_most - 1 LIMIT 1) END;
END
$$;

-- Many rows of a group become one. What is deleted and what is added are one statement, so every snapshot sees the same sums,
-- and rows that are appended meanwhile stay. `last_number` is where to go on, null at the end.
CREATE FUNCTION holdfast.compact_ledger(after bigint, upto bigint, at_most integer)
RETURNS TABLE (outcome text, merged bigint, last_number bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT holdfast.try_step('compact_counts') THEN
        RETURN QUERY SELECT 'busy', 0::bigint, NULL::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH walked AS MATERIALIZED (
        SELECT ledger.* FROM holdfast.ledger WHERE ledger.number > after AND ledger.number <= upto
        ORDER BY ledger.number LIMIT at_most
    ),
    grouped AS MATERIALIZED (
        SELECT walked.number, count(*) OVER same AS rows, sum(walked.amount) OVER same AS amount
        FROM walked WINDOW same AS (PARTITION BY walked.day, walked.state, walked.queue, walked.kind)
    ),
    gone AS (
        DELETE FROM holdfast.ledger USING grouped
        WHERE ledger.number = grouped.number AND (grouped.rows > 1 OR grouped.amount = 0)
        RETURNING ledger.day, ledger.state, ledger.amount, ledger.queue, ledger.kind
    ),
    added AS (
        INSERT INTO holdfast.ledger AS new_row (day, state, amount, queue, kind)
        SELECT gone.day, gone.state, sum(gone.amount), gone.queue, gone.kind
        FROM gone GROUP BY gone.day, gone.state, gone.queue, gone.kind
        HAVING sum(gone.amount) <> 0
        RETURNING new_row.number
    )
    SELECT 'pruned', (SELECT count(*) FROM gone) - (SELECT count(*) FROM added),
           (SELECT walked.number FROM walked ORDER BY walked.number OFFSET at_most - 1 LIMIT 1);
END
$$;
