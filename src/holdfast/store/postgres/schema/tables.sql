-- The tables of Holdfast, always in their current form. A fresh install runs this file, then every file in functions/,
-- then first_rows.sql. Migrations bring an existing database to the same state (docs/decisions/0010-schema.md).
--
-- How a job moves
--
--   enqueue             inserts the job into `job`, where it stays, and its place in line into `ready`
--   claim               moves the row from `ready` to `lease`
--   finish              moves the row from `lease` to `finished` (succeeded, canceled) or `dead_letter` (failed, dead),
--                       or back to `ready` (retry, snooze, release)
--   renew               extends a lease
--   run_alone           records that a suspect starts; if its worker dies after this, the job is to blame
--   rescue              moves an expired lease back to `ready`, or to `dead_letter` after too many crashes
--   absolve             takes a lost lease out of the suspicion, because the worker that lost it is alive
--   cancel, retry       move a job to `finished`, or a final job back to `ready`, at a person's request
--   delete_jobs         deletes a final job at a person's request
--   maintenance         drops partitions of `job` and `finished` once they are older than the retention
--
-- A job is therefore in exactly one of `ready`, `lease`, `finished` and `dead_letter`, and the table it is in is its
-- state. Each move is one statement: a DELETE whose RETURNING feeds the INSERT. The row in `job` changes only when
-- newer work with the same key replaces it.
--
-- What each table holds
--
--   job                 what was enqueued; partitioned by ranges of days (docs/decisions/0012-partitions.md)
--   ready               the queue: one row per job that can be claimed, now or later
--   lease               which worker holds which job, and until when
--   finished            the outcomes of jobs that succeeded or were canceled; partitioned by ranges of days
--   dead_letter         complete copies of failed and dead jobs, until a person decides about them
--   attempt_error       the newest few errors of a job's attempts; written by finish and rescue
--   progress            the latest report of a running handler; written by renew
--   key                 which job has a key; written by enqueue
--   ledger              changes in the number of final jobs; written by every verb that makes a job final or live
--                       again, added up by sql/count.sql and by maintenance
--   schedule, run       timetables with their next occurrence, and what ran when; written by ticks and the CLI
--   subscription        which events (including the deaths of jobs) create jobs of which kind; declared by code when a
--                       worker starts
--   kind                every kind that has had a handler; declared by code when a worker starts, read for warnings
--   sleeper, waiter     processes that want a notification of new jobs, or of a job's end
--   maintenance         when each maintenance chore was last done, and what it could not do
--   clock               a single row that decides all times; tests move it
--   migration, installed_function   what `holdfast migrate` has done here
--
-- How the functions are written
--
-- Verbs that every job passes through are functions, because a function's SET pins its plans. Otherwise, a generic plan
-- made while a queue was empty would still scan it sequentially when it is full, and session settings do not survive
-- PgBouncer. Rarer verbs are functions for the same reason: planned while all tables were empty, their plain statements
-- read 1,000 to 17,000 blocks for ten jobs. Rows are looked up with `id = ANY (ARRAY[given.id])`, because the planner
-- may reverse a plain join and then read the whole index.
--
-- Rules for this file
--
-- Parts of a job that change at different times are in different tables: a wide row that is updated four times in its
-- life leaves four wide dead rows. docs/decisions/0001-storage-layout.md has the figures. The tables that every job
-- passes through have no foreign keys between them; `holdfast doctor` checks them instead. Fixed-width columns come
-- first, because that saves padding. A column added by a migration comes last, because a migrated table must equal a
-- fresh one.

CREATE TYPE holdfast.job_state AS ENUM ('ready', 'running', 'succeeded', 'failed', 'dead', 'canceled');

-- Jobs
--
-- `claim` and the job's id together identify one claim forever. A worker builds the claim's name from a half that is
-- unique to the worker and a counter, so neither a failover nor a restore can issue the same name twice. Every change
-- to a running job names its claim, and changes nothing if the job no longer belongs to that claim. `finished` and
-- `dead_letter` keep the claim that ended the job, or null if none did. `fence` is the job's latest fence. It follows
-- the job through all of these tables so that the next one is higher, and handlers pass it to systems that refuse an
-- older one. docs/decisions/0011-claim-identity.md has the reasons.

-- json, not jsonb: the database does not look inside, keeps exactly what the producer sent, and no text can make it
-- fail.
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
-- For ids of days without a partition, and for ids that are not UUIDv7.
CREATE TABLE holdfast.job_other PARTITION OF holdfast.job DEFAULT;

-- The primary key is the claim order inside a lane (queue, is_suspect, priority, kind), so a claim never walks over
-- jobs it does not want. Every job is inserted here, so the table computes and checks nothing: a CHECK costs 4 us per
-- job, a generated column 3 us. Priorities are checked before the insert, and finish and rescue write `is_suspect`.
CREATE TABLE holdfast.ready (
    id uuid NOT NULL,
    run_at timestamptz NOT NULL,
    fence bigint NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    attempt smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    -- Lost leases that suggest the job kills its workers. From 2 on, the job is a suspect and runs alone.
    suspicion smallint NOT NULL DEFAULT 0,
    is_suspect boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, is_suspect, priority, kind, run_at, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_threshold = 5000);
CREATE UNIQUE INDEX ready_id ON holdfast.ready (id);

-- No index on `until`, and pages filled to half: a renewal then stays on its page and touches no index. Rescue scans
-- the table, which holds only running jobs.
CREATE TABLE holdfast.lease (
    id uuid NOT NULL PRIMARY KEY,
    claim uuid NOT NULL,
    fence bigint NOT NULL,
    until timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    priority smallint NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    suspicion smallint NOT NULL DEFAULT 0,
    -- Above zero: the job runs alone and may crash this many workers. A null would make every row 8 bytes longer.
    crash_limit smallint NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_threshold = 5000
);

-- `claim` is the one that finished the job. After a lost reply to COMMIT, it tells "already mine" from "stale".
CREATE TABLE holdfast.finished (
    id uuid NOT NULL PRIMARY KEY,
    claim uuid,
    fence bigint NOT NULL DEFAULT 0,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    attempt smallint NOT NULL,
    losses smallint NOT NULL,
    state holdfast.job_state NOT NULL,
    result json
) PARTITION BY RANGE (id);
CREATE TABLE holdfast.finished_other PARTITION OF holdfast.finished DEFAULT;

-- The complete job, so that it outlives the partition it was enqueued into.
CREATE TABLE holdfast.dead_letter (
    id uuid NOT NULL PRIMARY KEY,
    claim uuid,
    fence bigint NOT NULL DEFAULT 0,
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
-- For retention.
CREATE INDEX dead_letter_finished ON holdfast.dead_letter (finished_at);

CREATE TABLE holdfast.attempt_error (
    job_id uuid NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    -- Set for a lost lease that raised the suspicion, until it is absolved.
    lost_claim uuid,
    error jsonb NOT NULL,
    PRIMARY KEY (job_id, number)
);

CREATE TABLE holdfast.progress (
    job_id uuid NOT NULL PRIMARY KEY,
    fence bigint NOT NULL,
    at timestamptz NOT NULL,
    value json NOT NULL
) WITH (fillfactor = 70);

-- A producer locks the key's row before the job's row in `ready`. `until` null: the key is held until its job is
-- pruned. An expired key has no effect, whether or not its row is still here. docs/decisions/0006-keys.md has the
-- reasons.
CREATE TABLE holdfast.key (
    job_id uuid NOT NULL,
    until timestamptz,
    tenant text NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text NOT NULL,
    PRIMARY KEY (tenant, kind, key)
);
CREATE INDEX key_job ON holdfast.key (job_id);
CREATE INDEX key_until ON holdfast.key (until) WHERE until IS NOT NULL;

-- Every statement that moves jobs into or out of a final state appends the change, and maintenance adds the rows up.
-- Only sums mean anything. docs/decisions/0004-counts.md has the figures.
CREATE TABLE holdfast.ledger (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day date NOT NULL,
    state holdfast.job_state NOT NULL,
    amount bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);

-- Schedules and events

-- `kind` is null for an inline runner, because its function exists only in the code. `run_now` is a counter, so a
-- request that arrives while another is being answered is not lost.
CREATE TABLE holdfast.schedule (
    name text COLLATE "C" PRIMARY KEY,
    timetable text NOT NULL,
    zone text NOT NULL,
    missed text NOT NULL,
    missed_limit integer NOT NULL,
    origin text NOT NULL CHECK (origin IN ('code', 'stored')),
    next_occurrence timestamptz NOT NULL,
    last_occurrence timestamptz,
    paused boolean NOT NULL DEFAULT false,
    run_now integer NOT NULL DEFAULT 0,
    kind text,
    payload json,
    queue text,
    priority smallint,
    tenant text,
    headers json,
    max_attempts smallint
) WITH (fillfactor = 50);
CREATE INDEX schedule_next_occurrence ON holdfast.schedule (next_occurrence);
CREATE INDEX schedule_run_now ON holdfast.schedule (name) WHERE run_now > 0;

-- One row per occurrence of a schedule, and one per busy minute of any other runner.
CREATE TABLE holdfast.run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    started_at timestamptz NOT NULL,
    finished_at timestamptz,
    occurrence timestamptz,
    name text COLLATE "C" NOT NULL,
    replica text NOT NULL,
    result json,
    error json
);
CREATE INDEX run_started ON holdfast.run (started_at, id);
CREATE INDEX run_name ON holdfast.run (name, started_at, id);
CREATE INDEX run_unfinished ON holdfast.run (name) WHERE finished_at IS NULL;

-- There is no table of events. An event consists of the jobs it creates, one per matching subscription, and they carry
-- its content. Deaths are events too: each row inserted into `dead_letter` comes with the jobs for its death
-- (publish_deaths.sql). Patterns that begin with holdfast.dead. match deaths. docs/decisions/0016-deaths.md has the
-- reasons.
-- `name` is the kind of the created jobs. The checks are the same as in holdfast.enqueue: a row that makes an invalid
-- job would fail every transaction that publishes.
CREATE TABLE holdfast.subscription (
    name text COLLATE "C" PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    pattern text COLLATE "C" NOT NULL CHECK (pattern ~ '^([^.*]+[.])*([^.*]+|[*])$'),
    queue text NOT NULL CHECK (length(queue) BETWEEN 1 AND 100),
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    max_attempts smallint CHECK (max_attempts BETWEEN 1 AND 1000),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX subscription_pattern ON holdfast.subscription (pattern);

-- No decision depends on this table. `version` comes from the worker that declared the kind last.
CREATE TABLE holdfast.kind (
    version integer NOT NULL,
    declared_at timestamptz NOT NULL,
    name text COLLATE "C" PRIMARY KEY
);

-- Processes that want a notification
--
-- NOTIFY makes transactions commit one after another, so it is sent only while a process is registered here. Both
-- tables describe processes, not jobs, so their times are real and not those of the clock that tests move. Both are
-- unlogged: after a server crash, every listener reconnects and registers again.

-- `team`: workers that can take the same jobs share one (wake/postgres.py).
CREATE UNLOGGED TABLE holdfast.sleeper (
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    team uuid NOT NULL,
    queue text COLLATE "C" NOT NULL
);
-- Renewals leave dead rows behind, and their `until` is earlier. In this order, a lookup does not walk over them while
-- a pinned snapshot keeps them. There is no second index, because a planner that believes the table is tiny might
-- choose it and walk over everything. (Below about 35 pages it may read them all, which takes less than 0.1 ms.)
CREATE INDEX sleeper_until ON holdfast.sleeper (queue, until);

-- A row counts until the wait times out, so it never needs renewal. If its process died, the row costs at most one
-- notification, because its job becomes final once.
CREATE UNLOGGED TABLE holdfast.waiter (
    job_id uuid NOT NULL,
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (job_id, holder)
);
-- For "is any process waiting?": rows of past waits are dead and mostly lie before now, where that lookup does not go.
CREATE INDEX waiter_until ON holdfast.waiter (until);

-- The store itself

-- The clock for every decision. It is one row, so a test moves it for all processes at once.
CREATE TABLE holdfast.clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    moved interval NOT NULL DEFAULT '0',
    frozen_at timestamptz
);

-- Shared by all processes, so none repeats a chore that another has just done. `trouble` says what the latest pass could
-- not do, and why.
CREATE TABLE holdfast.maintenance (
    chore text NOT NULL PRIMARY KEY,
    done_at timestamptz,
    trouble text
);

-- The highest version is that of the tables.
CREATE TABLE holdfast.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- `digest` is the digest of the installed file, `definition` that of what PostgreSQL made of it. A function edited by
-- hand differs in the latter.
CREATE TABLE holdfast.installed_function (
    name text PRIMARY KEY,
    digest text NOT NULL,
    definition text NOT NULL
);
