-- The tables of Holdfast, always in their current form. A fresh install runs this file, then every file of functions/, then
-- first_rows.sql. An existing database gets there by migrations/ (docs/decisions/0010-schema.md).
--
-- How a job moves
--
--   enqueue             writes the job once to `job` and its place in line to `ready`
--   claim               moves the row of `ready` to `lease`
--   finish              moves the row of `lease` to `finished` (succeeded, canceled), to `dead_letter` (failed, dead), or
--                       back to `ready` (a retry, a snooze, a release)
--   renew               extends a lease
--   run_alone           notes that a suspect starts; what its worker dies of from now on, it has done
--   rescue              moves a lease that ran out back to `ready`, or to `dead_letter` after too many crashes
--   absolve             takes a lost lease out of the suspicion: the worker that lost it is alive
--   cancel, retry       a person moves a job to `finished`, or a final job back to `ready`
--   maintenance         drops partitions of `job` and `finished` once they are older than the retention
--
-- So a job is in exactly one of `ready`, `lease`, `finished` and `dead_letter`, and its state follows from where it is. The
-- move is one statement: a DELETE whose RETURNING feeds the INSERT. The row of `job` changes only if its key is replaced.
--
-- What each table holds
--
--   job                 what was enqueued; partitioned by days (docs/decisions/0012-partitions.md)
--   ready               the queue: one row per job that can be claimed, now or later
--   lease               which worker has which job, and until when
--   finished            how a job ended that succeeded or was canceled; partitioned by days
--   dead_letter         jobs that failed or died, whole, until a person decides about them
--   attempt_error       the errors of a job's attempts, the newest few; written by finish and rescue
--   progress            what a running handler last reported; written by renew
--   key                 which job has a key; written by enqueue
--   ledger              by how much the number of final jobs changed; written by every verb that makes a job final or live
--                       again, added up by sql/count.sql and by maintenance
--   schedule, run       timetables with their next occurrence, and what was executed when; written by ticks and the CLI
--   subscription        which events make jobs of which kind; declared by code when a worker starts
--   sleeper, waiter     processes that want a notification: of new jobs, of a job's end
--   maintenance         when each chore of maintenance was last done
--   clock               the one row by which all times are decided; tests move it
--   migration, installed_function   what `holdfast migrate` has done here
--
-- How the functions are written
--
-- A verb that every job passes through is a function because a function's SET pins its plans: a generic plan that was made
-- while a queue was empty would otherwise scan it in sequence when it is full, and session settings do not survive
-- PgBouncer. Rarer verbs are functions for the same reason: planned while all tables were empty, their plain statements read
-- 1,000 to 17,000 blocks for ten jobs. A row is sought with `id = ANY (ARRAY[given.id])`, because the planner may reverse
-- a plain join, and then it reads the whole index.
--
-- Rules for this file
--
-- Parts of a job that change at different times are in different tables: a wide row that is updated four times in its life
-- costs four wide dead rows. docs/decisions/0001-storage-layout.md has the figures. There are no foreign keys between the
-- tables that every job passes through; `holdfast doctor` checks instead. Fixed-width columns come first, because that
-- saves padding. A column that a migration adds comes last, because a migrated table must equal a fresh one.

CREATE TYPE holdfast.job_state AS ENUM ('ready', 'running', 'succeeded', 'failed', 'dead', 'canceled');

-- Jobs
--
-- `claim` and the job's id name one claim for ever: a worker makes the name, half its own and half a counter, so that neither
-- a failover nor a restore gives one out twice. Every change of a running job names its claim, and changes nothing if it is
-- not the job's any more; `finished` and `dead_letter` keep the claim that ended the job, null if none did. `fence` is the
-- job's last one: it goes with the job through all of these tables, so that the next is higher. A handler passes it on to
-- systems that refuse an older one. docs/decisions/0011-claim-identity.md has the reasons.

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
-- For ids of days without a partition, and for ids that are no UUIDv7.
CREATE TABLE holdfast.job_other PARTITION OF holdfast.job DEFAULT;

-- The primary key is the claim order inside a lane (queue, is_suspect, priority, kind), so that a claim never walks over
-- jobs that it does not want. Every job is inserted here, so the table computes and checks nothing: a CHECK costs 4 µs for
-- each job, a generated column 3 µs. Priorities are checked before, and finish and rescue write `is_suspect`.
CREATE TABLE holdfast.ready (
    id uuid NOT NULL,
    run_at timestamptz NOT NULL,
    fence bigint NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    attempt smallint NOT NULL DEFAULT 0,
    losses smallint NOT NULL DEFAULT 0,
    -- Lost leases that may mean that the job kills workers; from 2 on it is a suspect and runs alone.
    suspicion smallint NOT NULL DEFAULT 0,
    is_suspect boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, is_suspect, priority, kind, run_at, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_threshold = 5000);
CREATE UNIQUE INDEX ready_id ON holdfast.ready (id);

-- No index on `until`, and pages filled to half: a renewal then stays on its page and touches no index. Rescue scans the
-- table, which holds only what is running.
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
    -- More than zero: the job runs alone, and may crash so many workers. A null would make every row 8 bytes longer.
    crash_limit smallint NOT NULL DEFAULT 0,
    cancel_requested boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_threshold = 5000
);
-- Hardly any lease is in it, and a renewal changes nothing that it has.
CREATE INDEX lease_suspect ON holdfast.lease (queue) WHERE suspicion >= 2;

-- `claim` is the one that finished the job: after a lost reply to COMMIT it separates "already mine" from "stale".
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

-- The whole job, so that it outlives the partition that it was enqueued into.
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
    -- Of a lost lease that raised the suspicion, until it is absolved.
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

-- A producer locks a key's row before the job's row of `ready`. `until` null: the key is held until its job is pruned. A
-- key whose time is over has no effect, whether its row is still here or not. docs/decisions/0006-keys.md has the reasons.
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

-- Whatever moves jobs into a final state or out of one appends the change, and maintenance adds up. Only sums mean anything.
-- docs/decisions/0004-counts.md has the figures.
CREATE TABLE holdfast.ledger (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    day date NOT NULL,
    state holdfast.job_state NOT NULL,
    amount bigint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000);

-- Schedules and events

-- `kind` is null for an inline runner, whose function only the code has. `run_now` counts open requests, so that one that
-- comes while another is being answered is not lost.
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

-- One row per occurrence of a schedule, and per busy minute of any other runner.
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

-- There is no table of events: an event is the jobs that it makes, one per subscription that matches, and they carry it.
-- `name` is the kind of those jobs. The checks are those of holdfast.enqueue: a row that makes no valid job would fail every
-- transaction that publishes.
CREATE TABLE holdfast.subscription (
    name text COLLATE "C" PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    pattern text COLLATE "C" NOT NULL CHECK (pattern ~ '^([^.*]+\.)*([^.*]+|\*)$'),
    queue text NOT NULL CHECK (length(queue) BETWEEN 1 AND 100),
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    max_attempts smallint CHECK (max_attempts BETWEEN 1 AND 1000),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX subscription_pattern ON holdfast.subscription (pattern);

-- Processes that want a notification
--
-- NOTIFY makes transactions commit one after the other, so it is sent only while a process is registered here. Both tables
-- are about processes, not about jobs: their times are real, not those of the clock that tests move. Both are unlogged:
-- after a crash of the server every listener connects and registers again.

-- `team`: the workers that can take the same jobs have the same one (wake/postgres.py).
CREATE UNLOGGED TABLE holdfast.sleeper (
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    team uuid NOT NULL,
    queue text COLLATE "C" NOT NULL
);
-- Renewals leave dead rows behind, and those ended earlier: in this order a look does not walk over them while a pinned
-- snapshot keeps them. There is no second index, because a planner that believes the table to be tiny might take it and
-- walk over everything. (Below some 35 pages it may read them all, which takes less than 0.1 ms.)
CREATE INDEX sleeper_until ON holdfast.sleeper (queue, until);

-- A row counts until the wait's timeout, so that nothing needs to be renewed. One whose process died costs a single
-- notification at most, because its job becomes final once.
CREATE UNLOGGED TABLE holdfast.waiter (
    job_id uuid NOT NULL,
    holder uuid NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (job_id, holder)
);
-- For "is any process waiting?": rows of waits that ended are dead and mostly lie before now, where that look does not go.
CREATE INDEX waiter_until ON holdfast.waiter (until);

-- The store itself

-- The clock by which everything is decided. One row, so that a test moves it for every process at once.
CREATE TABLE holdfast.clock (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    moved interval NOT NULL DEFAULT '0',
    frozen_at timestamptz
);

-- Shared by all processes, so that none repeats what another has just done.
CREATE TABLE holdfast.maintenance (
    chore text NOT NULL PRIMARY KEY,
    done_at timestamptz NOT NULL
);

-- The newest version is that of the tables.
CREATE TABLE holdfast.migration (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- `digest` is that of the file that was installed, `definition` that of what PostgreSQL made of it: a function that was
-- edited by hand differs in the latter.
CREATE TABLE holdfast.installed_function (
    name text PRIMARY KEY,
    digest text NOT NULL,
    definition text NOT NULL
);
