-- Jobs are split by how often their parts change: `job` is written once; `ready` and `lease` are narrow rows that are
-- inserted and deleted; `finished` is appended. docs/decisions/0001-storage-layout.md has the figures.
-- Fixed-width columns come first: it saves the padding. No foreign keys on the hot path: `doctor` checks instead.

CREATE TYPE holdfast.job_state AS ENUM ('ready', 'running', 'succeeded', 'failed', 'dead', 'canceled');

CREATE SEQUENCE holdfast.fence;

-- The clock by which everything is decided. One row, so that a test moves it for every process at once.
CREATE TABLE holdfast.clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    moved interval NOT NULL DEFAULT '0',
    frozen_at timestamptz
);
INSERT INTO holdfast.clock DEFAULT VALUES;

CREATE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT coalesce(frozen_at, clock_timestamp() + moved) FROM holdfast.clock
$$;

-- json, not jsonb: the database does not look inside, it keeps what the producer sent, and no text can make it fail.
-- Partitioned by id: a UUIDv7 begins with its time, every lookup is by id, and retention drops whole partitions.
CREATE TABLE holdfast.job (
    id uuid NOT NULL PRIMARY KEY,
    created_at timestamptz NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    tenant text NOT NULL,
    correlation_id text NOT NULL,
    key text,
    payload json NOT NULL,
    headers json
) PARTITION BY RANGE (id);
CREATE TABLE holdfast.job_other PARTITION OF holdfast.job DEFAULT;

-- The primary key is the claim order inside a lane (queue, priority, kind), so that a claim never walks over jobs of
-- a kind that it does not want.
CREATE TABLE holdfast.ready (
    id uuid NOT NULL,
    run_at timestamptz NOT NULL,
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    attempt smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, priority, kind, run_at, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_threshold = 5000);
CREATE UNIQUE INDEX ready_id ON holdfast.ready (id);
-- The same order for the few jobs that lost their lease twice: nobody who wants only those walks over all others.
CREATE INDEX ready_suspect ON holdfast.ready (queue, priority, kind, run_at, id) WHERE losses >= 2;

-- No index on `until`, and pages filled to half: a renewal then stays on its page and touches no index. Rescue scans the
-- table, which holds only what is running.
CREATE TABLE holdfast.lease (
    id uuid NOT NULL PRIMARY KEY,
    fence bigint NOT NULL,
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    priority smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_threshold = 5000);

-- `fence` is the one that finished the job: it tells "already mine" from "stale" after a lost reply to COMMIT.
CREATE TABLE holdfast.finished (
    id uuid NOT NULL PRIMARY KEY,
    fence bigint,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    state holdfast.job_state NOT NULL,
    result json
) PARTITION BY RANGE (id);
CREATE TABLE holdfast.finished_other PARTITION OF holdfast.finished DEFAULT;

-- The whole job, so that it outlives the partition that it was enqueued into.
CREATE TABLE holdfast.dead_letter (
    id uuid NOT NULL PRIMARY KEY,
    fence bigint,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    priority smallint NOT NULL,
    max_attempts smallint,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    state holdfast.job_state NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    tenant text NOT NULL,
    correlation_id text NOT NULL,
    key text,
    payload json NOT NULL,
    headers json
);

CREATE TABLE holdfast.attempt_error (
    job_id uuid NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    error jsonb NOT NULL,
    PRIMARY KEY (job_id, number)
);

CREATE TABLE holdfast.progress (
    job_id uuid NOT NULL PRIMARY KEY,
    fence bigint NOT NULL,
    at timestamptz NOT NULL,
    value json NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE holdfast.key (
    job_id uuid NOT NULL,
    tenant text NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text NOT NULL,
    PRIMARY KEY (tenant, kind, key)
);
CREATE INDEX key_job ON holdfast.key (job_id);

-- How many jobs are in a final state: whoever moves jobs there or away appends what changed, and maintenance adds up. Only
-- sums mean anything. docs/decisions/0004-counts.md has the figures.
CREATE TABLE holdfast.ledger (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day date NOT NULL,
    state holdfast.job_state NOT NULL,
    amount bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);

-- The lowest UUIDv7 of a moment.
CREATE FUNCTION holdfast.first_id(moment timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

-- The day of an id, as the ledger has it. Ids that are no UUIDv7 are of any day; the bounds keep those few.
CREATE FUNCTION holdfast.day_of(id uuid) RETURNS date LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN id >= holdfast.first_id(timestamptz '2000-01-01 00:00:00+00')
                 AND id < holdfast.first_id(timestamptz '2100-01-01 00:00:00+00')
                THEN date '1970-01-01'
                     + (('x' || encode(substring(uuid_send(id) FOR 6), 'hex'))::bit(48)::bigint / 86400000)::integer
                ELSE date '1970-01-01' END
$$;

-- Attaching a partition reads the default one behind a lock that stops everybody.
CREATE FUNCTION holdfast.default_is_large() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT greatest(pg_relation_size('holdfast.job_other'), pg_relation_size('holdfast.finished_other')) > 268435456
$$;

-- One partition of job and finished per day, both or neither. A day whose ids already went to the default partition stays
-- there, and its jobs are pruned one by one. Null: another session is at it.
CREATE FUNCTION holdfast.add_partitions(first_day date, days integer) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
    day date;
    first uuid;
    upto uuid;
    parent text;
    part text;
    added integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('holdfast.add_partitions', 0)) THEN
        RETURN NULL;
    ELSIF holdfast.default_is_large() THEN
        RETURN 0;
    END IF;
    FOR day IN SELECT first_day + number FROM generate_series(0, days - 1) AS number LOOP
        first := holdfast.first_id(day::timestamp AT TIME ZONE 'UTC');
        upto := holdfast.first_id((day + 1)::timestamp AT TIME ZONE 'UTC');
        CONTINUE WHEN to_regclass(format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD'))) IS NOT NULL
            OR EXISTS (SELECT FROM holdfast.job_other WHERE id >= first AND id < upto)
            OR EXISTS (SELECT FROM holdfast.finished_other WHERE id >= first AND id < upto);
        BEGIN
            FOREACH parent IN ARRAY ARRAY['job', 'finished'] LOOP
                part := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
                EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                               part, parent);
                EXECUTE format('ALTER TABLE holdfast.%I ATTACH PARTITION holdfast.%I FOR VALUES FROM (%L) TO (%L)',
                               parent, part, first, upto);
            END LOOP;
            added := added + 2;
        EXCEPTION WHEN check_violation OR lock_not_available OR duplicate_table THEN
            NULL;
        END;
    END LOOP;
    RETURN added;
END
$$;
SELECT holdfast.add_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date, 8);
