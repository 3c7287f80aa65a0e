"""Layouts as changes to what ships: the package's own tables, functions and statements, so that the base cannot drift.

A variant replaces pieces of that text, or leaves out what the store does beside it; a bolder layout adds a file of
`sql/`, which is run after them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from holdfast.store.postgres.release import this_release
from holdfast.store.postgres.sql_files import statement

SQL = Path(__file__).parent.parent / "sql"
SCHEMA = "holdfast"
VERBS = ("enqueue", "enqueue_one", "claim", "claim_usual", "next_due")
"""Those with a statement in a file."""


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement, in "tables", "function <name>" or the statement of a verb; `old` must be there."""

    where: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Layout:
    name: str
    title: str
    changes: tuple[Change, ...] = ()
    files: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the connection."""
    has_copy: bool = True
    """Many jobs are enqueued by COPY."""
    has_floors: bool = True
    """Claims start from their floors where looking at everything is dear."""

    def _changed(self, where: str, text: str) -> str:
        text = text.replace(f'"{SCHEMA}".', f"{SCHEMA}.")
        for change in self.changes:
            if change.where == where:
                if change.old not in text:
                    raise ValueError(f"{self.name}: {change.old!r} is not in {where}")
                text = text.replace(change.old, change.new)
        return text

    def statement(self, verb: str, arguments: int) -> str:
        return self._changed(verb, statement(verb, SCHEMA, arguments))

    async def install(self, connection: asyncpg.Connection) -> None:
        """Into an empty database."""
        release = this_release()
        texts = {
            "tables": release.tables,
            **{f"function {name}": text for name, text in release.functions.items()},
            "first rows": release.first_rows,
        }
        for change in self.changes:
            if change.where not in texts and change.where not in VERBS:
                raise ValueError(f"{self.name}: there is no {change.where}")
        await connection.execute(f"CREATE SCHEMA {SCHEMA}; SET check_function_bodies = off")
        for where, text in texts.items():
            await connection.execute(self._changed(where, text))
        for file in self.files:
            await connection.execute((SQL / file).read_text())


PINNED = (
    "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off\n"
    "SET plan_cache_mode = force_generic_plan SET jit = off"
)
PINNED_SETTINGS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
RUNG = "PERFORM holdfast.ring_waiters(ids);\n"
RUNG_IF_ASKED = (
    "IF EXISTS (SELECT FROM holdfast.waiter WHERE waiter.until > statement_timestamp()) THEN\n"
    f"        {RUNG}    END IF;\n"
)
LEDGER = """entered AS (
        INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
        SELECT holdfast.day_of(gone.id), 'succeeded'::holdfast.job_state, count(*), gone.queue, gone.kind
        FROM gone
        GROUP BY 1, 4, 5
    )"""
LOCKED = """            LIMIT lane.fetch_count
            FOR UPDATE SKIP LOCKED
        ) AS found
        ORDER BY lane.priority, found.run_at, found.id
        LIMIT at_most
    ),
    taken"""

LEASED = """    leased AS (
        INSERT INTO holdfast.lease AS new_lease
            (id, fence, holder, until, claimed_at, run_at, priority, attempt, losses, queue, kind)
        SELECT taken.id, nextval('holdfast.fence'), for_holder, moment + taken.lease, moment, taken.run_at,
               taken.priority, (taken.attempt + 1)::smallint, taken.losses, taken.queue, taken.kind
        FROM taken
        RETURNING new_lease.id, new_lease.fence, new_lease.run_at, new_lease.priority, new_lease.attempt,
                  new_lease.losses, new_lease.queue, new_lease.kind
    )
    SELECT leased.id, leased.fence, leased.queue, leased.priority, leased.kind, leased.run_at, leased.attempt,
           leased.losses, job.max_attempts, job.tenant, job.correlation_id, job.created_at, job.payload::text,
           job.headers::text
    FROM leased
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = leased.id LIMIT 1) AS job
    ORDER BY leased.fence;
"""
BATCHED = """    leased AS (
        INSERT INTO holdfast.batch AS new_batch
            (number, holder, claimed_at, lease, priority, queue, kind, ids, run_ats, attempts, losses)
        SELECT nextval('holdfast.batch_number'), for_holder, moment, taken.lease, taken.priority, taken.queue,
               taken.kind, array_agg(taken.id), array_agg(taken.run_at),
               CASE WHEN max(taken.attempt) > 0 THEN array_agg(taken.attempt) END,
               CASE WHEN max(taken.losses) > 0 THEN array_agg(taken.losses) END
        FROM taken
        GROUP BY taken.lease, taken.priority, taken.queue, taken.kind
        RETURNING new_batch.*
    ),
    opened AS (
        INSERT INTO holdfast.batch_left (number, holder, left_count)
        SELECT leased.number, for_holder, cardinality(leased.ids) FROM leased
    )
    SELECT each.id, leased.number * 65536 + each.place, leased.queue, leased.priority,
           leased.kind, each.run_at, (coalesce(each.attempt, 0) + 1)::smallint, coalesce(each.losses, 0::smallint),
           job.max_attempts, job.tenant, job.correlation_id, job.created_at, job.payload::text, job.headers::text
    FROM leased
    CROSS JOIN LATERAL unnest(leased.ids, leased.run_ats, leased.attempts, leased.losses)
        WITH ORDINALITY AS each (id, run_at, attempt, losses, place)
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = each.id LIMIT 1) AS job
    ORDER BY leased.priority, each.run_at, each.id;
"""

RINGING = tuple(Change(f"function {verb}", RUNG_IF_ASKED, RUNG) for verb in ("finish_succeeded", "finish"))
TIMES = Change(
    "claim_usual",
    "CASE WHEN $12 THEN run_at END AS run_at",
    # A second time in the place of the lease's end, which this claim does not have.
    "CASE WHEN $12 THEN run_at ELSE run_at END AS run_at, created_at AS until",
)
CLAIM = "function claim_usual"
UNPINNED = tuple(
    Change(f"function {verb}", PINNED, "") for verb in ("claim", "claim_usual", "finish", "finish_succeeded", "renew")
)
FIRST_LOCKS_NOTHING = Change(CLAIM, LOCKED, LOCKED.replace("            FOR UPDATE SKIP LOCKED\n", "", 1))
WALL_CLOCK = (
    Change(
        "function now",
        "(SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved) FROM holdfast.clock)",
        "clock_timestamp()",
    ),
    Change(
        "enqueue_one",
        "(SELECT coalesce(frozen_at, clock_timestamp() + moved) FROM holdfast.clock)",
        "clock_timestamp()",
    ),
)
CLOCK_IN_SQL = Change(
    "function now",
    """LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved) FROM holdfast.clock);
END
$$""",
    """LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved) FROM holdfast.clock
$$""",
)
ONE_PARTITION = Change("first rows", "AT TIME ZONE 'UTC')::date, 8)", "AT TIME ZONE 'UTC')::date, 1)")
NO_JOB_ROW = Change(
    CLAIM,
    """           leased.losses, job.max_attempts, job.tenant, job.correlation_id, job.created_at, job.payload::text,
           job.headers::text
    FROM leased
    CROSS JOIN LATERAL (SELECT * FROM holdfast.job WHERE job.id = leased.id LIMIT 1) AS job
""",
    """           leased.losses, 4::smallint, ''::text, ''::text, moment, '{}'::text, NULL::text
    FROM leased
""",
)
NO_LEDGER = Change("function finish_succeeded", LEDGER, "entered AS (SELECT)")

FULL_PAGES = Change("tables", "    fillfactor = 50,", "    fillfactor = 100,")
BATCHES = Change(CLAIM, LEASED, BATCHED)

CURSOR = (
    FIRST_LOCKS_NOTHING,
    Change(
        CLAIM,
        """        SELECT * FROM unnest(queues, priorities, kinds, floor_times, floor_ids, fetches, leases)
            AS lane (queue, priority, kind, floor_time, floor_id, fetch_count, lease)
""",
        """        SELECT lane.queue, lane.priority, lane.kind, coalesce(place.run_at, lane.floor_time) AS floor_time,
               coalesce(place.id, lane.floor_id) AS floor_id, lane.fetch_count, lane.lease
        FROM unnest(queues, priorities, kinds, floor_times, floor_ids, fetches, leases)
            AS lane (queue, priority, kind, floor_time, floor_id, fetch_count, lease)
        LEFT JOIN LATERAL (
            SELECT lane_cursor.run_at, lane_cursor.id FROM holdfast.lane_cursor
            WHERE lane_cursor.queue = lane.queue AND lane_cursor.priority = lane.priority
              AND lane_cursor.kind = lane.kind
            FOR UPDATE
        ) AS place ON true
""",
    ),
    Change(
        CLAIM,
        """        DELETE FROM holdfast.ready USING chosen WHERE ready.ctid = chosen.place
        RETURNING ready.id, ready.run_at, ready.priority, ready.attempt, ready.losses, ready.queue, ready.kind,
                  chosen.lease
""",
        """        SELECT ready.id, ready.run_at, ready.priority, ready.attempt, ready.losses, ready.queue, ready.kind,
               chosen.lease
        FROM chosen JOIN holdfast.ready ON ready.ctid = chosen.place
""",
    ),
    Change(CLAIM, "array_agg(taken.id)", "array_agg(taken.id ORDER BY taken.run_at, taken.id)"),
    Change(CLAIM, "array_agg(taken.run_at)", "array_agg(taken.run_at ORDER BY taken.run_at, taken.id)"),
    Change(
        CLAIM,
        "    opened AS (\n",
        """    moved AS (
        INSERT INTO holdfast.lane_cursor (queue, priority, kind, run_at, id)
        SELECT leased.queue, leased.priority, leased.kind, leased.run_ats[cardinality(leased.ids)],
               leased.ids[cardinality(leased.ids)]
        FROM leased
        ON CONFLICT (queue, priority, kind) DO UPDATE SET run_at = excluded.run_at, id = excluded.id
    ),
    opened AS (
""",
    ),
)

H = Layout("H", "what ships")
LAYOUTS = {
    one.name: one
    for one in (
        H,
        Layout("unpinned", "no SET on functions, set on the connection", UNPINNED, settings=PINNED_SETTINGS),
        Layout("ring_always", "as before: ring_waiters called whether or not somebody waits", RINGING),
        Layout("times", "as before: a claim tells until and run_at of every job", (TIMES,)),
        Layout("clock_sql", "as before: now() in SQL, planned again in each statement", (CLOCK_IN_SQL,)),
        Layout("no_copy", "as before: many jobs enqueued by the statement over arrays", has_copy=False),
        Layout("no_floors", "every claim looks at everything, to see what floors bring", has_floors=False),
        Layout("clock", "now() without its table, to see what that costs", WALL_CLOCK),
        Layout("one_partition", "job and finished with one partition, to see what eight cost", (ONE_PARTITION,)),
        Layout("batch", "one row per claim and lane instead of a lease per job", (BATCHES,), ("batch.sql",)),
        Layout(
            "cursor",
            "batch, and ready neither locked nor deleted, as from segments",
            (BATCHES, *CURSOR),
            ("batch.sql", "cursor.sql"),
        ),
        Layout("no_job_row", "a claim that does not read job, to see what that costs", (NO_JOB_ROW,)),
        Layout("no_ledger", "no ledger, to see what it costs", (NO_LEDGER,)),
        Layout("unlocked", "claim does not lock before it deletes", (FIRST_LOCKS_NOTHING,)),
        Layout("full_pages", "lease pages filled", (FULL_PAGES,)),
    )
}
