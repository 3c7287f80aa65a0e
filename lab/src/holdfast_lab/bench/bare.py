"""The limits that Holdfast is measured against: the same work on plain asyncpg, without Holdfast's code in the loop.

Each one is a task for apart.py. Rows are made before timing starts. Where there are two ways, the faster one is the
limit, because a limit that is slow by accident would flatter Holdfast.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg

from holdfast.domain.claim import new_claim, new_holder
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewJob
from holdfast.domain.limits import CLAIM_BYTES
from holdfast.store.floors import MARGIN
from holdfast.store.postgres.driver import Address
from holdfast.store.postgres.sql_files import statement
from holdfast_lab.bench.apart import Task, run_all_apart
from holdfast_lab.bench.app import NOTHING, new_jobs
from holdfast_lab.bench.sql_files import bench_statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Connection = asyncpg.Connection[asyncpg.Record]
    Rows = list[asyncpg.Record]

WARM_UP_CALLS = 10
WARM_UP_SECONDS = 0.02

_LEASE = timedelta(seconds=30)
_BEGINNING = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))
_CLAIM_ARGUMENTS, _FINISH_ARGUMENTS = 16, 2
_CLAIMS_PER_FLOOR = 5
_JOB_COLUMNS = (
    "id", "created_at", "priority", "max_attempts", "queue", "kind", "tenant", "correlation_id", "payload", "headers",
)  # fmt: skip
_READY_COLUMNS = ("id", "run_at", "priority", "queue", "kind")
_COPIED = {"job": _JOB_COLUMNS, "ready": _READY_COLUMNS}


@dataclass(frozen=True, slots=True)
class Spent:
    jobs: int
    seconds: float

    @property
    def jobs_per_second(self) -> float:
        return self.jobs / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ClaimAndFinish:
    """Holdfast's own statements in a loop, until nothing is due.

    `is_overlapping`: claim the next batch while the last one is being finished, on two connections. The loop asks only
    for the lane that has the jobs, starting where the last claim ended, which makes the cheapest possible claim.
    """

    url: str
    schema: str
    batch: int = 1_000
    kind: str = NOTHING
    is_overlapping: bool = True

    async def run(self) -> Spent:
        async with AsyncExitStack() as stack:
            stack.enter_context(_no_collection())
            claimer = await stack.enter_async_context(_connected(self.url))
            finisher = await stack.enter_async_context(_connected(self.url)) if self.is_overlapping else claimer
            claim = await _Claim.prepared(claimer, self.schema, self.kind, self.batch)
            finish = await _Finish.prepared(finisher, self.schema, claim.name)
            started = time.perf_counter()
            jobs = await (self._overlapping(claim, finish) if self.is_overlapping else self._in_turn(claim, finish))
            return Spent(jobs, time.perf_counter() - started)

    async def _in_turn(self, claim: "_Claim", finish: "_Finish") -> int:
        jobs = 0
        while rows := await claim():
            jobs += await finish(rows)
        return jobs

    async def _overlapping(self, claim: "_Claim", finish: "_Finish") -> int:
        jobs = 0
        rows = await claim()
        while rows:
            finished, rows = await asyncio.gather(finish(rows), claim())
            jobs += finished
        return jobs


@dataclass(frozen=True, slots=True)
class OneTableQueue:
    """The simplest possible queue: claim and delete in one transaction, without leases, fences or history."""

    url: str
    schema: str
    jobs: int
    batch: int = 1_000

    async def run(self) -> Spent:
        rows = [(job.id, job.priority, job.queue, job.kind, job.payload) for job in new_jobs(self.jobs)]
        async with _connected(self.url) as connection:
            await connection.execute(bench_statement("bare_queue", self.schema))
            await connection.copy_records_to_table(
                "bare_queue",
                schema_name=self.schema,
                columns=("id", "priority", "queue", "kind", "payload"),
                records=rows,
            )
            # Stands in for autovacuum; without statistics the claim might sort the whole table.
            await connection.execute(bench_statement("bare_queue_vacuum", self.schema))
            try:
                with _no_collection():
                    return await self._drain(connection)
            finally:
                await connection.execute(bench_statement("bare_queue_drop", self.schema))

    async def _drain(self, connection: "Connection") -> Spent:
        claim = await connection.prepare(bench_statement("bare_queue_claim", self.schema))
        delete = await connection.prepare(bench_statement("bare_queue_delete", self.schema))
        jobs = 0
        started = time.perf_counter()
        while True:
            async with connection.transaction():
                rows = await claim.fetch(DEFAULT_QUEUE, self.batch)
                if not rows:
                    break
                await delete.fetch([row[0] for row in rows])
            jobs += len(rows)
        return Spent(jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Copy:
    """COPY the rows of a bulk enqueue into the same tables as records, one transaction per batch."""

    url: str
    schema: str
    jobs: int
    batch: int = 1_000
    kind: str = NOTHING

    async def run(self) -> Spent:
        jobs = new_jobs(self.jobs, self.kind)
        batches = [_rows_of(jobs[first : first + self.batch]) for first in range(0, self.jobs, self.batch)]
        async with _connected(self.url) as connection:
            await connection.fetch("SELECT")
            started = time.perf_counter()
            for batch in batches:
                async with connection.transaction():
                    await _copy(connection, self.schema, batch)
            return Spent(self.jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class CopyPacked:
    """Like Copy, but with bytes packed before timing starts, which leaves the server's share and the wire.

    The server itself packs them, from a temporary table, so that no packing code of ours has to be trusted.
    """

    url: str
    schema: str
    jobs: int
    batch: int = 1_000
    kind: str = NOTHING

    async def run(self) -> Spent:
        jobs = new_jobs(self.jobs, self.kind)
        async with _connected(self.url) as connection:
            await connection.execute(bench_statement("packing", self.schema))
            batches = [
                await _packed(connection, _rows_of(jobs[first : first + self.batch]))
                for first in range(0, self.jobs, self.batch)
            ]
            started = time.perf_counter()
            for batch in batches:
                async with connection.transaction():
                    for (table, columns), packed in zip(_COPIED.items(), batch, strict=True):
                        await connection.copy_to_table(
                            table, schema_name=self.schema, columns=columns, source=_one(packed), format="binary"
                        )
            return Spent(self.jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class InsertEach:
    """Insert the two rows of each job in one statement, with a commit per job and no wake-up. An extra job warms up."""

    url: str
    schema: str
    jobs: int
    kind: str = NOTHING

    async def run(self) -> Spent:
        first, *rows = [_columns_of(job) for job in new_jobs(self.jobs + 1, self.kind)]
        async with _connected(self.url) as connection:
            insert = await connection.prepare(bench_statement("bare_insert", self.schema))
            await insert.fetch(*first)
            started = time.perf_counter()
            for row in rows:
                await insert.fetch(*row)
            return Spent(self.jobs, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Gaps:
    """The times between two enqueue calls in seconds, spread evenly over a range, and the same in every run."""

    shortest: float
    longest: float

    @property
    def mean(self) -> float:
        return (self.shortest + self.longest) / 2

    def times(self, count: int) -> list[float]:
        """When to make each call, in seconds after the start."""
        random = Random(count)  # noqa: S311 - not a secret
        return list(accumulate(random.uniform(self.shortest, self.longest) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class InsertAndNotify:
    """Enqueue `batch` jobs and notify, in one transaction, after each gap. Returns when each job's commit returned."""

    url: str
    schema: str
    channel: str
    calls: int
    gaps: Gaps
    batch: int = 1
    kind: str = NOTHING

    async def run(self) -> dict[UUID, float]:
        returned: dict[UUID, float] = {}
        jobs = [new_jobs(self.batch, self.kind) for _ in range(self.calls)]
        async with _connected(self.url) as connection:
            enqueue = await self._by_copy(connection) if self.batch > 1 else await self._by_statement(connection)
            is_waiting = await connection.prepare(bench_statement("is_waiting", self.schema))
            for job in new_jobs(WARM_UP_CALLS, self.kind):
                await enqueue([job])
                while await is_waiting.fetchval():  # noqa: ASYNC110 - another process claims it
                    await asyncio.sleep(WARM_UP_SECONDS)
            started = time.perf_counter()
            for at, each in zip(self.gaps.times(self.calls), jobs, strict=True):
                await asyncio.sleep(max(0.0, started + at - time.perf_counter()))
                await enqueue(each)
                returned.update(dict.fromkeys((job.id for job in each), time.time()))
        return returned

    async def _by_statement(self, connection: "Connection") -> "_Enqueue":
        insert = await connection.prepare(bench_statement("bare_insert_and_notify", self.schema))

        async def enqueue(jobs: Sequence[NewJob]) -> None:
            await insert.fetch(*_columns_of(jobs[0]), self.channel)

        return enqueue

    async def _by_copy(self, connection: "Connection") -> "_Enqueue":
        notify = await connection.prepare("SELECT pg_notify($1, '')")

        async def enqueue(jobs: Sequence[NewJob]) -> None:
            async with connection.transaction():
                await _copy(connection, self.schema, _rows_of(jobs))
                await notify.fetch(self.channel)

        return enqueue


@dataclass(frozen=True, slots=True)
class ListenAndClaim:
    """Claim on each notification, and finish on a third connection. Returns when each job's claim returned."""

    url: str
    schema: str
    channel: str
    jobs: int
    batch: int = 1_000
    kind: str = NOTHING

    async def run(self) -> dict[UUID, float]:
        claimed: dict[UUID, float] = {}
        woken = asyncio.Event()
        async with AsyncExitStack() as stack:
            stack.enter_context(_no_collection())
            listener, claimer, finisher = [await stack.enter_async_context(_connected(self.url)) for _ in range(3)]
            claim = await _Claim.prepared(claimer, self.schema, self.kind, self.batch)
            finish = await _Finish.prepared(finisher, self.schema, claim.name)
            await listener.add_listener(self.channel, lambda *_: woken.set())
            finishing = asyncio.ensure_future(finish([]))
            while len(claimed) < self.jobs:
                rows = await claim()
                now = time.time()
                claimed.update((row["id"], now) for row in rows)
                if rows:
                    await finishing
                    finishing = asyncio.ensure_future(finish(rows))
                elif len(claimed) < self.jobs:
                    await woken.wait()
                    woken.clear()
            await finishing
        return claimed


async def notify_to_claim(
    url: str, schema: str, calls: int, gaps: Gaps, *, batch: int = 1, kind: str = NOTHING
) -> list[float]:
    """Return the seconds from each commit's return in one process to the claim's return in another.

    Negative where the claim returned before the reply to the commit.
    """
    channel = f"holdfast_bench_{uuid4().hex}"
    claiming = ListenAndClaim(url, schema, channel, calls * batch + WARM_UP_CALLS, kind=kind)
    enqueuing = InsertAndNotify(url, schema, channel, calls, gaps, batch, kind)
    tasks: list[Task[dict[UUID, float]]] = [claiming, enqueuing]
    claimed, returned = await run_all_apart(tasks)
    return [claimed[id] - at for id, at in returned.items()]


_Enqueue = Callable[[Sequence[NewJob]], Awaitable[None]]


class _Claim:
    """Claims one batch of one lane. The arguments and their order are those of claiming.py."""

    def __init__(self, fetch: Callable[..., Coroutine[Any, Any, "Rows"]], kind: str, batch: int) -> None:
        self.name = new_claim(new_holder())
        """One name for all claims, because no job is claimed twice here."""
        self._fetch = fetch
        self._before = (
            *(batch, CLAIM_BYTES // batch, False, False, None, None),
            *([DEFAULT_QUEUE], [DEFAULT_PRIORITY], [kind]),
        )
        self._after = ([batch], [batch], [_LEASE])
        self._floor = _BEGINNING
        self._claims = 0

    @classmethod
    async def prepared(cls, connection: "Connection", schema: str, kind: str, batch: int) -> "_Claim":
        prepared = await connection.prepare(statement("claim", schema, _CLAIM_ARGUMENTS))
        return cls(prepared.fetch, kind, batch)

    async def __call__(self) -> "Rows":
        # A floor saves later claims from walking over claimed rows, but decoding timestamps is expensive.
        self._claims += 1
        margin = MARGIN if self._claims % _CLAIMS_PER_FLOOR == 0 else None
        rows = await self._fetch(self.name, margin, *self._before, [self._floor[0]], [self._floor[1]], *self._after)
        if rows and margin is not None:
            self._floor = (rows[-1]["floor_time"], rows[-1]["id"])
        return rows


class _Finish:
    """Finishes the jobs of one claim as succeeded, without results."""

    def __init__(self, fetch: Callable[..., Coroutine[Any, Any, "Rows"]], claim: UUID) -> None:
        self._fetch = fetch
        self._claim = claim

    @classmethod
    async def prepared(cls, connection: "Connection", schema: str, claim: UUID) -> "_Finish":
        prepared = await connection.prepare(statement("finish_succeeded", schema, _FINISH_ARGUMENTS))
        return cls(prepared.fetch, claim)

    async def __call__(self, rows: "Rows") -> int:
        ((refused,),) = await self._fetch([row["id"] for row in rows], [self._claim] * len(rows))
        return len(rows) - len(refused or ())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: a worker rarely collects, and these loops make no garbage that needs it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def _connected(url: str) -> "AsyncIterator[Connection]":
    # Without the timeouts of the store's connections, which cost a timer per statement.
    connection = await asyncpg.connect(Address.parse(url).dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def _copy(connection: "Connection", schema: str, rows: tuple[Sequence[tuple[object, ...]], ...]) -> None:
    for (table, columns), records in zip(_COPIED.items(), rows, strict=True):
        await connection.copy_records_to_table(table, schema_name=schema, columns=columns, records=records)


async def _packed(connection: "Connection", rows: tuple[Sequence[tuple[object, ...]], ...]) -> list[bytes]:
    """The bytes that a binary COPY of these rows sends, for each table."""
    found: list[bytes] = []
    for (table, columns), records in zip(_COPIED.items(), rows, strict=True):
        output = BytesIO()
        await connection.execute(f"TRUNCATE packing_{table}")
        await connection.copy_records_to_table(f"packing_{table}", columns=columns, records=records)
        await connection.copy_from_table(f"packing_{table}", columns=columns, output=output, format="binary")
        found.append(output.getvalue())
    return found


async def _one(packed: bytes) -> "AsyncIterator[bytes]":
    yield packed


def _rows_of(jobs: Sequence[NewJob]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """The rows of `job` and the rows of `ready`."""
    now = datetime.now(UTC)
    return (
        [(job.id, now, *_columns_of(job)[1:]) for job in jobs],
        [(job.id, now, job.priority, job.queue, job.kind) for job in jobs],
    )


def _columns_of(job: NewJob) -> tuple[object, ...]:
    return (
        job.id, job.priority, job.max_attempts, job.queue, job.kind, job.tenant, job.correlation_id, job.payload,
        job.headers,
    )  # fmt: skip
