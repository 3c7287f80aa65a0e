-- Keys: what a producer does that meets a key, and until when a key is held. docs/decisions/0006-keys.md has the reasons.

-- A migration that has to wait for a lock must not make everybody else wait behind it.
SET LOCAL lock_timeout = '2s';

-- Null: held for as long as the job is kept. A key whose time is over has no effect, whether it is still here or not.
ALTER TABLE holdfast.key ADD COLUMN until timestamptz;
CREATE INDEX key_until ON holdfast.key (until) WHERE until IS NOT NULL;

-- An id names one call: whether the job of this id came with this key. It may have lost the key since, to a later job or
-- because its time was over; whoever repeats the call must neither make a second job nor replace what came after.
CREATE FUNCTION holdfast.is_repeated(new_id uuid, of_tenant text, of_kind text, met text)
RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM holdfast.job
                   WHERE job.id = new_id AND job.tenant = of_tenant AND job.kind = of_kind AND job.key = met)
        OR EXISTS (SELECT FROM holdfast.dead_letter AS dead
                   WHERE dead.id = new_id AND dead.tenant = of_tenant AND dead.kind = of_kind AND dead.key = met);
END
$$;

-- A producer met a key. Says what is to be done: `keep` the job that has it, `replace` what that job is to do (its row of
-- `ready` is taken away here), or make a `new` job, to which the key belongs from now on. Null: the key has changed hands
-- meanwhile, ask again.
-- Rows are locked in one order: the key, then the row of `ready`. Without the lock on the key a second replacement could
-- find no row of `ready` between the first one's DELETE and INSERT, and take the job for a running one.
-- With that lock, a DELETE that finds nothing met a job that is running or final, or just then became so.
CREATE FUNCTION holdfast.meet_key(
    of_tenant text, of_kind text, met text, new_id uuid, replacing boolean, key_window interval,
    OUT answer text, OUT kept_id uuid
) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
    held holdfast.key;
    held_until timestamptz;
BEGIN
    SELECT * INTO held FROM holdfast.key WHERE key.tenant = of_tenant AND key.kind = of_kind AND key.key = met;
    kept_id := held.job_id;
    held_until := held.until;
    IF key_window IS NOT NULL AND held_until IS NULL THEN
        -- The job came without a window, so the window that is asked for now is counted from when it came.
        held_until := key_window + coalesce(
            (SELECT job.created_at FROM holdfast.job WHERE job.id = kept_id),
            (SELECT dead_letter.created_at FROM holdfast.dead_letter WHERE dead_letter.id = kept_id));
    END IF;
    IF kept_id IS NULL THEN
        RETURN;
    ELSIF held_until <= moment THEN
        answer := 'new';
    ELSIF replacing AND kept_id <> new_id THEN
        answer := 'replace';
    ELSE
        answer := 'keep';
        RETURN;
    END IF;
    IF holdfast.is_repeated(new_id, of_tenant, of_kind, met) THEN
        answer := 'keep';
        kept_id := new_id;
        RETURN;
    END IF;
    PERFORM FROM holdfast.key
    WHERE key.tenant = of_tenant AND key.kind = of_kind AND key.key = met
      AND key.job_id = kept_id AND key.until IS NOT DISTINCT FROM held.until
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        answer := NULL;
        RETURN;
    END IF;
    IF answer = 'replace' THEN
        DELETE FROM holdfast.ready WHERE ready.id = kept_id;
        answer := CASE WHEN FOUND THEN 'replace' ELSE 'new' END;
    END IF;
    IF answer = 'new' THEN
        UPDATE holdfast.key SET job_id = new_id, until = holdfast.now() + key_window
        WHERE key.tenant = of_tenant AND key.kind = of_kind AND key.key = met;
    END IF;
END
$$;

-- The other half of a replacement. The row of `job` is changed in place, which is safe because that of `ready` is not: a
-- claim whose snapshot is older finds only the deleted row, and one that sees the new row sees the new payload as well.
CREATE FUNCTION holdfast.rewrite_job(
    job_id uuid, new_priority integer, new_max_attempts integer, new_queue text, new_correlation_id text,
    new_payload json, new_headers json
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
    UPDATE holdfast.job
    SET priority = new_priority, max_attempts = new_max_attempts, queue = new_queue,
        correlation_id = coalesce(new_correlation_id, job.correlation_id), payload = new_payload, headers = new_headers
    WHERE job.id = job_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % cannot be seen by this transaction; try again', job_id USING ERRCODE = '40001';
    END IF;
END
$$;

-- The public way to enqueue from any language, inside the caller's own transaction:
--     SELECT id FROM holdfast.enqueue('invoice.send', '{"invoice": 17}');
-- With a key, a kept job of the same tenant and kind is returned instead and is_new is false; `if_exists => 'replace'` puts
-- the new work in the place of one that is not running, and `key_window` holds the key for so long, whatever becomes of the
-- job. A producer that meets a key whose first holder has not committed yet waits for it: after ON CONFLICT DO NOTHING the
-- same snapshot may not see the winner, so this needs a loop and cannot be one statement.
-- New parameters come last, so that old calls stay what they are.
-- A function that is made anew is everybody's and nobody else's, so who may call it is remembered and granted again.
SELECT set_config('holdfast_migration.enqueue_acl', coalesce(proacl::text, ''), true) FROM pg_proc
WHERE oid = 'holdfast.enqueue(text, json, text, integer, interval, timestamptz, text, text, text, integer, json, uuid)'
    ::regprocedure;
DROP FUNCTION holdfast.enqueue(text, json, text, integer, interval, timestamptz, text, text, text, integer, json, uuid);
CREATE FUNCTION holdfast.enqueue(
    kind text,
    payload json,
    queue text DEFAULT 'default',
    priority integer DEFAULT 5,
    delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    tenant text DEFAULT '',
    key text DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    headers json DEFAULT NULL,
    job_id uuid DEFAULT NULL,
    if_exists text DEFAULT 'keep',
    key_window interval DEFAULT NULL,
    OUT id uuid,
    OUT is_new boolean,
    OUT replaced boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    moment timestamptz := holdfast.now();
    is_patient boolean;
    tries integer := 0;
    answer text;
    kept_id uuid;
BEGIN
    IF kind IS NULL OR kind = '' OR length(kind) > 200 THEN
        RAISE EXCEPTION 'kind: give 1 to 200 characters' USING ERRCODE = 'HF002';
    ELSIF queue IS NULL OR queue = '' OR length(queue) > 100 THEN
        RAISE EXCEPTION 'queue: give 1 to 100 characters' USING ERRCODE = 'HF002';
    ELSIF priority IS NULL OR priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority: % is not a number from 0 (most urgent) to 9', priority USING ERRCODE = 'HF002';
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts: % is not a number from 1 to 1000', max_attempts USING ERRCODE = 'HF002';
    ELSIF delay NOT BETWEEN interval '0' AND interval '36500 days' THEN
        RAISE EXCEPTION 'delay: % is negative or longer than a hundred years', delay USING ERRCODE = 'HF002';
    ELSIF delay IS NOT NULL AND run_at IS NOT NULL THEN
        RAISE EXCEPTION 'give a delay or a run_at, not both' USING ERRCODE = 'HF002';
    ELSIF run_at >= timestamptz '9999-01-01 00:00:00+00' THEN
        -- Also infinity, from which nothing can be subtracted: every worker's next_due would fail.
        RAISE EXCEPTION 'run_at: % is not before the year 9999', run_at USING ERRCODE = 'HF002';
    ELSIF payload IS NULL OR octet_length(payload::text) > 10485760 THEN
        RAISE EXCEPTION 'payload: give JSON of at most 10 MB' USING ERRCODE = 'HF002';
    ELSIF key = '' OR length(key) > 500 OR length(tenant) > 200 OR length(correlation_id) > 200 THEN
        RAISE EXCEPTION 'key, tenant or correlation_id: empty or too long' USING ERRCODE = 'HF002';
    ELSIF octet_length(key) + octet_length(coalesce(tenant, '')) + octet_length(kind) > 2500 THEN
        -- They make one entry of an index, which cannot be longer than 2,704 bytes.
        RAISE EXCEPTION 'key: with its tenant and kind over the limit of 2,500 bytes' USING ERRCODE = 'HF002';
    ELSIF if_exists IS NULL OR if_exists NOT IN ('keep', 'replace') THEN
        RAISE EXCEPTION 'if_exists: % is not known; use keep or replace', coalesce(quote_literal(if_exists), 'NULL')
            USING ERRCODE = 'HF002';
    ELSIF key IS NULL AND (if_exists = 'replace' OR key_window IS NOT NULL) THEN
        RAISE EXCEPTION 'if_exists and key_window need a key' USING ERRCODE = 'HF002';
    ELSIF if_exists = 'replace' AND key_window IS NOT NULL THEN
        RAISE EXCEPTION 'give if_exists => ''replace'' or a key_window, not both' USING ERRCODE = 'HF002';
    ELSIF key_window <= interval '0' OR key_window > interval '36500 days' THEN
        RAISE EXCEPTION 'key_window: % is not more than zero, or longer than a hundred years', key_window
            USING ERRCODE = 'HF002';
    END IF;
    id := coalesce(job_id, holdfast.new_id());
    is_new := true;
    replaced := false;
    IF key IS NOT NULL THEN
        -- Who has a lock_timeout keeps it; everybody else waits for another producer's transaction for this long.
        is_patient := current_setting('lock_timeout') = '0';
        IF is_patient THEN
            PERFORM set_config('lock_timeout', '10s', true);
        END IF;
        LOOP
            INSERT INTO holdfast.key AS kept (job_id, tenant, kind, key, until)
            VALUES (id, coalesce(tenant, ''), kind, key, moment + key_window) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT met.answer, met.kept_id INTO answer, kept_id
            FROM holdfast.meet_key(coalesce(tenant, ''), kind, key, id, if_exists = 'replace', key_window) AS met;
            EXIT WHEN answer IS NOT NULL;
            tries := tries + 1;
            IF tries >= 100 THEN
                RAISE EXCEPTION 'the key % keeps changing hands; try again', quote_literal(key) USING ERRCODE = '40001';
            END IF;
        END LOOP;
        IF is_patient THEN
            PERFORM set_config('lock_timeout', '0', true);
        END IF;
        IF answer IN ('keep', 'replace') THEN
            id := kept_id;
            is_new := false;
            replaced := answer = 'replace';
        END IF;
        IF answer = 'keep' THEN
            RETURN;
        ELSIF answer IS NOT NULL THEN
            -- There may have been a wait, and nothing is due before it was enqueued.
            moment := holdfast.now();
        END IF;
    END IF;
    IF replaced THEN
        -- A correlation id that is only the id of the job that was not made says nothing.
        PERFORM holdfast.rewrite_job(id, priority, max_attempts, queue,
                                     nullif(nullif(correlation_id, ''), job_id::text), payload, headers);
    ELSE
        INSERT INTO holdfast.job (id, created_at, priority, max_attempts, queue, kind, tenant, correlation_id, key,
                                  payload, headers)
        VALUES (id, moment, priority, max_attempts, queue, kind, coalesce(tenant, ''),
                coalesce(nullif(correlation_id, ''), id::text), key, payload, headers)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            IF key IS NULL OR answer IS NOT NULL OR NOT holdfast.is_repeated(id, coalesce(tenant, ''), kind, key) THEN
                RAISE EXCEPTION 'job % exists already', id
                    USING ERRCODE = 'unique_violation', DETAIL = format('Key (id)=(%s) already exists.', id);
            END IF;
            -- Nobody had the key because its time was over. It is left as it was found.
            DELETE FROM holdfast.key AS taken
            WHERE taken.tenant = coalesce(tenant, '') AND taken.kind = kind AND taken.key = key;
            is_new := false;
            RETURN;
        END IF;
    END IF;
    -- A replaced job starts over, with all its attempts.
    INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
    VALUES (id, greatest(coalesce(run_at, moment + delay), moment), priority, queue, kind);
    IF coalesce(run_at, moment + delay, moment) <= moment + interval '1 minute' THEN
        PERFORM pg_notify('holdfast_' || md5('holdfast.wake'), queue)
        FROM holdfast.sleeper WHERE sleeper.queue = queue AND sleeper.until > statement_timestamp() LIMIT 1;
    END IF;
END
$$;

DO $$
DECLARE
    made regprocedure := 'holdfast.enqueue(text, json, text, integer, interval, timestamptz, text, text, text, integer, json, '
                         'uuid, text, interval)';
    acl text := current_setting('holdfast_migration.enqueue_acl');
    allowed record;
BEGIN
    IF acl = '' THEN
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', made);
    FOR allowed IN
        SELECT CASE WHEN each.grantee = 0 THEN 'PUBLIC' ELSE each.grantee::regrole::text END AS role,
               CASE WHEN each.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS option
        FROM aclexplode(acl::aclitem[]) AS each
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s%s', made, allowed.role, allowed.option);
    END LOOP;
END
$$;

-- Maintenance removes a key with its job, unless the key has a time of its own. A key that a producer is about to take over
-- is not waited for, as nothing waits here: producers lock keys in another order. Its job stays until the next time.
CREATE OR REPLACE FUNCTION holdfast.prune_part(part text, retention interval, after uuid, at_most integer)
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
                SELECT walked.id, own_key.place AS key_place FROM walked
                CROSS JOIN LATERAL (
                    SELECT FROM finished_part AS part
                    WHERE part.id = walked.id AND part.finished_at < $3
                    FOR UPDATE SKIP LOCKED
                ) AS part
                LEFT JOIN LATERAL (
                    SELECT key.ctid AS place FROM holdfast.key
                    WHERE key.job_id = walked.id AND key.until IS NULL
                    FOR UPDATE SKIP LOCKED
                ) AS own_key ON true
                WHERE own_key.place IS NOT NULL OR NOT EXISTS (
                    SELECT FROM holdfast.key WHERE key.job_id = ANY (ARRAY[walked.id]) AND key.until IS NULL)
            ),
            gone AS (
                DELETE FROM finished_part AS part USING old WHERE part.id = ANY (ARRAY[old.id])
                RETURNING part.id, part.state
            ),
            jobs AS (
                DELETE FROM holdfast.job USING gone WHERE job.id = ANY (ARRAY[gone.id])
                RETURNING job.id, gone.state, job.queue, job.kind
            ),
            keys AS (DELETE FROM holdfast.key USING old WHERE key.ctid = old.key_place),
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

CREATE OR REPLACE FUNCTION holdfast.prune_dead_letters(retention interval, at_most integer)
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
    WITH walked AS MATERIALIZED (
        SELECT dead_letter.id FROM holdfast.dead_letter
        WHERE dead_letter.finished_at < cutoff
        ORDER BY dead_letter.finished_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    old AS MATERIALIZED (
        SELECT walked.id, own_key.place AS key_place FROM walked
        LEFT JOIN LATERAL (
            SELECT key.ctid AS place FROM holdfast.key
            WHERE key.job_id = walked.id AND key.until IS NULL
            FOR UPDATE SKIP LOCKED
        ) AS own_key ON true
        WHERE own_key.place IS NOT NULL OR NOT EXISTS (
            SELECT FROM holdfast.key WHERE key.job_id = ANY (ARRAY[walked.id]) AND key.until IS NULL)
    ),
    gone AS (
        DELETE FROM holdfast.dead_letter USING old WHERE dead_letter.id = ANY (ARRAY[old.id])
        RETURNING dead_letter.id, dead_letter.state, dead_letter.queue, dead_letter.kind
    ),
    jobs AS (DELETE FROM holdfast.job USING gone WHERE job.id = ANY (ARRAY[gone.id])),
    keys AS (DELETE FROM holdfast.key USING old WHERE key.ctid = old.key_place),
    errors AS (DELETE FROM holdfast.attempt_error USING gone WHERE attempt_error.job_id = ANY (ARRAY[gone.id])),
    notes AS (DELETE FROM holdfast.progress USING gone WHERE progress.job_id = ANY (ARRAY[gone.id])),
    entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), gone.state, -count(*), gone.queue, gone.kind FROM gone GROUP BY 1, 2, 4, 5
    )
    SELECT 'pruned', (SELECT count(*) FROM gone);
END
$$;

CREATE OR REPLACE FUNCTION holdfast.sweep(side text, after uuid, at_most integer)
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
        EXECUTE replace(replace($statement$
            WITH walked AS MATERIALIZED (
                SELECT side.job_id FROM side_table AS side
                WHERE side.job_id > $1 AND side.job_id < $2 AND only_these ORDER BY side.job_id LIMIT $3
            ),
            orphan AS MATERIALIZED (
                SELECT DISTINCT walked.job_id FROM walked
                WHERE NOT EXISTS (SELECT FROM holdfast.job WHERE job.id = ANY (ARRAY[walked.job_id]))
                  AND NOT EXISTS (SELECT FROM holdfast.dead_letter WHERE dead_letter.id = ANY (ARRAY[walked.job_id]))
            ),
            locked AS MATERIALIZED (
                SELECT side.place FROM orphan
                CROSS JOIN LATERAL (
                    SELECT side.ctid AS place FROM side_table AS side
                    WHERE side.job_id = orphan.job_id AND only_these
                    FOR UPDATE SKIP LOCKED
                ) AS side
            ),
            gone AS (
                DELETE FROM side_table AS side USING locked WHERE side.ctid = locked.place
                RETURNING side.job_id
            )
            SELECT (SELECT count(*) FROM gone),
                   (SELECT walked.job_id FROM walked ORDER BY walked.job_id OFFSET $3 - 1 LIMIT 1)
        $statement$, 'side_table', format('holdfast.%I', side)),
                    'only_these', CASE side WHEN 'key' THEN 'side.until IS NULL' ELSE 'true' END)
            INTO swept, last_id USING after, first, at_most;
    END IF;
    RETURN NEXT;
END
$$;

-- Keys whose time is over, by the index on it: what is read is what is deleted.
CREATE FUNCTION holdfast.forget_keys(at_most integer)
RETURNS TABLE (outcome text, forgotten bigint)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := holdfast.now();
BEGIN
    IF NOT holdfast.try_step('prune_jobs') THEN
        RETURN QUERY SELECT 'busy', 0::bigint;
        RETURN;
    END IF;
    RETURN QUERY
    WITH over AS MATERIALIZED (
        SELECT key.ctid AS place FROM holdfast.key
        WHERE key.until <= moment
        ORDER BY key.until
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (DELETE FROM holdfast.key USING over WHERE key.ctid = over.place RETURNING key.job_id)
    SELECT 'pruned', (SELECT count(*) FROM gone);
END
$$;
