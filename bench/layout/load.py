"""The load: sample rows, enqueueing, and a drain that claims the next batch while it finishes the one before."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID, uuid4

import asyncpg
import uuid_utils

from bench.layout.candidates import SQL, VERBS, Candidate, install

PAYLOAD = '{"to": "someone@example.com", "note": "aaaaaaaaaaaaaaaaaaaaaa", "amount": "199.90", "invoice_id": 12345}'
ERROR = '{"code": "UPSTREAM_TIMEOUT", "message": "the other side did not answer within ten seconds"}'
BATCH = 500
INSERT_BATCH = 1000
KINDS = tuple(f"kind_{number}" for number in range(4))
PRIORITIES = range(10)
LEASE = timedelta(seconds=60)
EARLIEST = (datetime(2000, 1, 1, tzinfo=UTC), UUID(int=0))
RETRIED, FAILED = 0.03, 0.01

Lane: TypeAlias = tuple[int, str]
Floor: TypeAlias = tuple[datetime, UUID]


def call(verb: str) -> str:
    """The query that runs a verb's function."""
    amount = VERBS[verb][0].count(",") + 1
    return f"SELECT * FROM holdfast.{verb}({', '.join(f'${number}' for number in range(1, amount + 1))})"


async def make_sample(connection: asyncpg.Connection, deferred: int, dead: int, finished: int) -> None:
    text = (SQL / "sample.sql").read_text()
    for name, value in {
        "payload": f"'{PAYLOAD}'",
        "deferred": str(deferred),
        "dead": str(dead),
        "finished": str(finished),
    }.items():
        text = text.replace(f":{name}", value, 1) if name != "payload" else text.replace(":payload::", f"{value}::", 1)
    for statement in text.split(";\n"):
        if statement.strip():
            await connection.execute(statement)


async def prepare(connection: asyncpg.Connection, candidate: Candidate, *, preload: bool = True) -> None:
    await install(connection, candidate)
    if preload:
        await connection.execute(candidate.sections()["preload"])
    await connection.execute("VACUUM ANALYZE")


def new_jobs(
    amount: int, *, kinds: Sequence[str] = KINDS, priority: int = 2, queue: str = "default"
) -> tuple[list[object], ...]:
    """The arguments of one enqueue."""
    return (
        [UUID(bytes=uuid_utils.uuid7().bytes) for _ in range(amount)],
        [queue] * amount,
        [kinds[number % len(kinds)] for number in range(amount)],
        [priority] * amount,
        [None] * amount,
        [PAYLOAD] * amount,
        [None] * amount,
        [f"tenant_{number % 50}" for number in range(amount)],
        [uuid4().hex for _ in range(amount)],
        [None] * amount,
        [4] * amount,
    )


async def enqueue(connection: asyncpg.Connection, amount: int) -> float:
    """Enqueues by batches and returns the seconds that the database took."""
    statement = await connection.prepare(call("enqueue"))
    seconds = 0.0
    for start in range(0, amount, INSERT_BATCH):
        arguments = new_jobs(min(INSERT_BATCH, amount - start))
        began = time.perf_counter()
        await statement.fetch(*arguments)
        seconds += time.perf_counter() - began
    return seconds


@dataclass(slots=True)
class Lanes:
    """What a worker asks for; with floors it remembers where each lane's last claim ended.

    A look over everything, from the beginning, is taken again when 20 times its own duration has passed since it ended.
    """

    candidate: Candidate
    kinds: Sequence[str] = KINDS
    priorities: Sequence[int] = PRIORITIES
    with_floors: bool = False
    floors: dict[Lane, Floor] = field(default_factory=dict)
    shares: dict[Lane, int] = field(default_factory=dict)
    next_full_look: float = 0.0
    full_looks: list[float] = field(default_factory=list)

    def lanes(self) -> list[Lane]:
        names = [",".join(self.kinds)] if self.candidate.kinds_share_a_lane else self.kinds
        return [(priority, kind) for priority in self.priorities for kind in names]

    def arguments(self, holder: UUID, *, everything: bool) -> tuple[object, ...]:
        lanes = self.lanes()
        floors = [EARLIEST if everything else self.floors.get(lane, EARLIEST) for lane in lanes]
        return (
            ["default"] * len(lanes),
            [priority for priority, _ in lanes],
            [kind for _, kind in lanes],
            [run_at for run_at, _ in floors],
            [identity for _, identity in floors],
            [self.at_most(lane) for lane in lanes],
            BATCH,
            holder,
            LEASE,
        )

    def at_most(self, lane: Lane) -> int:
        """How many jobs of this lane the claim may lock."""
        if not self.candidate.lanes_share_a_batch:
            return BATCH
        return min(BATCH, int(1.25 * self.shares.get(lane, BATCH // len(self.kinds))) + 2)

    def everything_now(self) -> bool:
        return not self.with_floors or time.perf_counter() >= self.next_full_look

    def learn(self, rows: Sequence[asyncpg.Record], *, everything: bool, seconds: float) -> None:
        if self.with_floors and everything:
            self.full_looks.append(seconds)
            self.next_full_look = time.perf_counter() + 20 * seconds
        taken: Counter[Lane] = Counter()
        for row in rows:
            lane, place = (row["priority"], row["kind"]), (row["run_at"], row["id"])
            taken[lane] += 1
            if self.with_floors and place > self.floors.get(lane, EARLIEST):
                self.floors[lane] = place
        for lane, amount in taken.items():
            if amount >= self.at_most(lane):
                self.shares[lane] = 2 * amount
            elif len(rows) == BATCH:
                self.shares[lane] = amount


@dataclass(slots=True)
class Drain:
    done: int
    seconds: float
    claims: list[float]


def outcomes(rows: Sequence[asyncpg.Record], chance: random.Random) -> tuple[list[object], ...]:
    """3 % of the jobs are retried once, 1 % fail for good, the others succeed."""
    states: list[object] = []
    for row in rows:
        drawn = chance.random()
        retried = drawn < RETRIED and row["attempt"] == 1
        failed = RETRIED <= drawn < RETRIED + FAILED
        states.append(0 if retried else 2 if failed else 1)
    return (
        states,
        [timedelta(0) if state == 0 else None for state in states],
        [None] * len(rows),
        [None if state == 1 else ERROR for state in states],
    )


async def drain(
    claiming: asyncpg.Connection,
    finishing: asyncpg.Connection,
    lanes: Lanes,
    jobs: int,
) -> Drain:
    """Claims and finishes until so many jobs are done."""
    chance, holder = random.Random(7), uuid4()
    claim = await claiming.prepare(call("claim"))
    finish = await finishing.prepare(call("finish"))
    claims: list[float] = []

    async def next_batch() -> list[asyncpg.Record]:
        everything = lanes.everything_now()
        began = time.perf_counter()
        rows = await claim.fetch(*lanes.arguments(holder, everything=everything))
        seconds = time.perf_counter() - began
        claims.append(seconds)
        lanes.learn(rows, everything=everything, seconds=seconds)
        return list(rows)

    async def write(rows: list[asyncpg.Record]) -> int:
        states, delays, results, errors = outcomes(rows, chance)
        written = await finish.fetch(
            [row["id"] for row in rows], [row["fence"] for row in rows], holder, states, delays, results, errors
        )
        if len(written) != len(rows):
            raise RuntimeError(f"{len(rows) - len(written)} leases were lost")
        return states.count(1) + states.count(2)

    began, done = time.perf_counter(), 0
    coming = asyncio.create_task(next_batch())
    writing: asyncio.Task[int] | None = None
    while True:
        rows = await coming
        if writing is not None:
            done += await writing
            writing = None
        if done == jobs:
            return Drain(done, time.perf_counter() - began, claims)
        coming = asyncio.create_task(next_batch())
        if rows:
            writing = asyncio.create_task(write(rows))
