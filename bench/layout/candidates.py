"""The candidate layouts: their tables and verbs come from `sql/`, their variants are named changes to that text.

Every verb is one statement with numbered parameters, wrapped into a function whose settings pin its plan, so that the
same statement can also be measured inline.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import asyncpg

SQL = Path(__file__).parent / "sql"

PINNED_SETTINGS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}

CLAIMED = (
    "id uuid, fence bigint, queue text, kind text, priority smallint, run_at timestamptz, attempt smallint,"
    " losses smallint, max_attempts smallint, tenant text, correlation_id text, key text, created_at timestamptz,"
    " payload text, headers text"
)

# verb -> (parameter types, result)
VERBS: dict[str, tuple[str, str]] = {
    "enqueue": (
        "uuid[], text[], text[], smallint[], timestamptz[], text[], text[], text[], text[], text[], smallint[]",
        "void",
    ),
    "claim": (
        "text[], smallint[], text[], timestamptz[], uuid[], integer[], integer, uuid, interval",
        f"TABLE ({CLAIMED})",
    ),
    "finish": ("uuid[], bigint[], uuid, smallint[], interval[], text[], text[]", "TABLE (id uuid)"),
    "renew": ("uuid[], bigint[], uuid, interval", "TABLE (id uuid, cancel_requested boolean)"),
    "release": ("uuid[], bigint[], uuid", "TABLE (id uuid)"),
    "rescue": ("integer", "TABLE (id uuid)"),
    "cancel": ("uuid[]", "TABLE (id uuid)"),
    "retry": ("uuid[]", "TABLE (id uuid)"),
    "show": (
        "uuid",
        "TABLE (id uuid, queue text, kind text, payload text, state smallint, attempt smallint)",
    ),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One replacement in one section of the SQL; `old` must be there, and is replaced wherever it is."""

    section: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    title: str
    files: tuple[str, ...]
    partitioned: tuple[str, ...]
    live_tables: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    extra_tables: str = ""
    kinds_share_a_lane: bool = False
    lanes_share_a_batch: bool = False
    """A lane may lock a quarter more than the last claim took from it, instead of a whole batch."""
    rescue_settings: dict[str, str] = field(default_factory=dict)

    def sections(self) -> dict[str, str]:
        merged: dict[str, str] = {}
        for file in self.files:
            merged.update(sections_of(file))
        for change in self.changes:
            if change.old not in merged[change.section]:
                raise ValueError(f"{self.name}: {change.old!r} is not in {change.section}")
            merged[change.section] = merged[change.section].replace(change.old, change.new)
        merged["tables"] += self.extra_tables
        return merged

    def function(self, verb: str, statement: str) -> str:
        parameters, result = VERBS[verb]
        settings = PINNED_SETTINGS | (self.rescue_settings if verb == "rescue" else {})
        pinned = " ".join(f"SET {name} = '{value}'" for name, value in settings.items())
        body = f"{statement};" if result == "void" else f"RETURN QUERY {statement};"
        return (
            f"CREATE FUNCTION holdfast.{verb}({parameters}) RETURNS {result} LANGUAGE plpgsql {pinned} AS\n"
            f"$body$\n#variable_conflict use_column\nBEGIN\n{body}\nEND $body$"
        )


@cache
def sections_of(file: str) -> dict[str, str]:
    pieces = re.split(r"^-- section: (\w+)\n", (SQL / file).read_text(), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


async def install(connection: asyncpg.Connection, candidate: Candidate) -> None:
    """Builds the candidate's empty schema in place of whatever candidate was there before."""
    await connection.execute((SQL / "common.sql").read_text())
    sections = candidate.sections()
    await connection.execute(sections["tables"])
    for table in candidate.partitioned:
        await connection.execute(f"CREATE TABLE holdfast.{table}_default PARTITION OF holdfast.{table} DEFAULT")
        for day in range(-8, 3):
            await connection.execute(await partition_of_day(connection, table, day))
    for verb in VERBS:
        await connection.execute(candidate.function(verb, sections[verb]))


async def partition_of_day(connection: asyncpg.Connection, table: str, day: int) -> str:
    """The statement that makes the partition of one day, counted from today."""
    lower, upper = [
        await connection.fetchval(
            "SELECT holdfast.first_id(date_trunc('day', clock_timestamp()) + $1 * interval '1 day')", edge
        )
        for edge in (day, day + 1)
    ]
    return (
        f"CREATE TABLE holdfast.{partition_name(table, day)} PARTITION OF holdfast.{table}"
        f" FOR VALUES FROM ('{lower}') TO ('{upper}')"
    )


def partition_name(table: str, day: int) -> str:
    return f"{table}_{'past' if day < 0 else 'day'}_{abs(day)}"


FINISH_LOCKS_FIRST = Change(
    "finish",
    """gone AS (
    DELETE FROM holdfast.lease AS l
    USING unnest($1::uuid[], $2::bigint[], $4::smallint[], $5::interval[], $6::text[], $7::text[])
          AS o (id, fence, state, delay, result, error)
    WHERE l.id = ANY (ARRAY[o.id]) AND l.fence = o.fence AND l.holder = $3
""",
    """held AS MATERIALIZED (
    SELECT found.id, o.state, o.delay, o.result, o.error
    FROM unnest($1::uuid[], $2::bigint[], $4::smallint[], $5::interval[], $6::text[], $7::text[])
         AS o (id, fence, state, delay, result, error)
    CROSS JOIN LATERAL (
        SELECT l.id FROM holdfast.lease AS l
        WHERE l.id = o.id AND l.fence = o.fence AND l.holder = $3
        FOR UPDATE SKIP LOCKED
    ) AS found
),
gone AS (
    DELETE FROM holdfast.lease AS l USING held AS o WHERE l.id = ANY (ARRAY[o.id])
""",
)

COUNTS_TABLE = """
CREATE TABLE holdfast.counts (
    at timestamptz NOT NULL, delta bigint NOT NULL, state smallint NOT NULL, queue text NOT NULL, kind text NOT NULL
);"""
COUNT_ENQUEUED = """counted AS (
    INSERT INTO holdfast.counts (at, delta, state, queue, kind)
    SELECT min(created_at), count(*), 0, queue, kind FROM given GROUP BY queue, kind
),
jobs AS ("""
COUNT_CLAIMED = """counted AS (
    INSERT INTO holdfast.counts (at, delta, state, queue, kind)
    SELECT (SELECT now FROM moment), s.sign * count(*), s.state, t.queue, t.kind
    FROM taken AS t CROSS JOIN (VALUES (-1, 0), (1, -1)) AS s (sign, state) GROUP BY t.queue, t.kind, s.sign, s.state
),
leased AS ("""
COUNT_FINISHED = """counted AS (
    INSERT INTO holdfast.counts (at, delta, state, queue, kind)
    SELECT (SELECT now FROM moment), count(*), g.state, g.queue, g.kind FROM gone AS g GROUP BY g.queue, g.kind, g.state
    UNION ALL
    SELECT (SELECT now FROM moment), -count(*), -1, g.queue, g.kind FROM gone AS g GROUP BY g.queue, g.kind
),
ended AS ("""

PAYLOAD_AS_JSON = (
    Change("tables", "payload jsonb", "payload json"),
    Change("enqueue", "payload::jsonb", "payload::json"),
)

NO_UNTIL_INDEX_HALF_FILLED = "\nDROP INDEX holdfast.lease_until; ALTER TABLE holdfast.lease SET (fillfactor = 50);"

A = Candidate("A", "narrow tables", ("narrow.sql",), ("job", "finished"), ("ready", "lease"))
B = Candidate("B", "job and one live row", ("live.sql",), ("job", "finished"), ("live",))
C = Candidate("C", "one wide row", ("wide.sql",), (), ("job",))
D = Candidate("D", "hot row and history", ("wide.sql", "history.sql"), ("history",), ("job",))

VARIANTS = (
    replace(A, name="A1", title="no index on ready (id)", extra_tables="\nDROP INDEX holdfast.ready_id;"),
    replace(
        A,
        name="A2",
        title="no index on lease (until)",
        extra_tables="\nDROP INDEX holdfast.lease_until;",
        rescue_settings={"enable_seqscan": "on"},
    ),
    replace(A, name="A3", title="finish locks first", changes=(FINISH_LOCKS_FIRST,)),
    replace(
        A,
        name="A4",
        title="count deltas",
        changes=(
            Change("enqueue", "jobs AS (", COUNT_ENQUEUED),
            Change("claim", "leased AS (", COUNT_CLAIMED),
            Change("finish", "ended AS (", COUNT_FINISHED),
        ),
        extra_tables=COUNTS_TABLE,
    ),
    replace(
        A,
        name="A5",
        title="kind not in the claim order",
        changes=(
            Change("claim", "r.kind = lane.kind", "r.kind = ANY (string_to_array(lane.kind, ','))"),
            Change("tables", "(queue, priority, kind, run_at, id)", "(queue, priority, run_at, id)"),
        ),
        kinds_share_a_lane=True,
    ),
    replace(A, name="A6", title="payload as json", changes=PAYLOAD_AS_JSON),
    replace(A, name="A7", title="lanes share a batch", lanes_share_a_batch=True),
    replace(A, name="A8", title="look first, then lock", files=("narrow.sql", "narrow_peek.sql")),
    replace(
        A,
        name="A9",
        title="A2, and lease pages filled to half",
        extra_tables=NO_UNTIL_INDEX_HALF_FILLED,
        rescue_settings={"enable_seqscan": "on"},
    ),
    replace(
        A,
        name="F",
        title="A6, A7 and A9 together",
        changes=PAYLOAD_AS_JSON,
        lanes_share_a_batch=True,
        extra_tables=NO_UNTIL_INDEX_HALF_FILLED,
        rescue_settings={"enable_seqscan": "on"},
    ),
)
MAIN = (A, B, C, D)
ALL = {candidate.name: candidate for candidate in (*MAIN, *VARIANTS)}
