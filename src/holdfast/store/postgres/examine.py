"""The questions that `holdfast doctor` asks PostgreSQL, each with one method and one sql/doctor_*.sql.

Every question runs in a separate read-only transaction with a time limit, and works through PgBouncer.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import UUID

from holdfast.domain.limits import check_schema
from holdfast.domain.versions import VERSION_HEADER
from holdfast.store.postgres.driver import is_pooled, open_connection, open_session, translated
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.sql_files import statement

if TYPE_CHECKING:
    import asyncpg

_SECONDS = 10.0
_DEEP_SECONDS = 600.0
_TIME_ASKED = 3


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`ahead` is how far the server's clock is ahead of this machine's, accurate to the round trip."""

    took: timedelta
    ahead: timedelta


@dataclass(frozen=True, slots=True)
class Server:
    """`unsafe` names the settings that are off and could therefore lose committed rows."""

    version: str
    version_number: int
    encoding: str
    is_standby: bool
    unsafe: list[str]
    autovacuum: bool
    connections: int
    most_connections: int
    notify_share: float


@dataclass(frozen=True, slots=True)
class ClockRow:
    moved: timedelta
    frozen_at: datetime | None


@dataclass(frozen=True, slots=True)
class ExpiredLeases:
    leases: int
    oldest: timedelta | None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    kind: str
    jobs: int
    newest: datetime
    now: datetime


@dataclass(frozen=True, slots=True)
class DueLane:
    queue: str
    kind: str
    due_for: timedelta
    running: int


@dataclass(frozen=True, slots=True)
class NewerJobs:
    """Ready jobs with a newer version than that of the worker that last declared their kind."""

    kind: str
    version: int
    declared: int
    jobs: int


@dataclass(frozen=True, slots=True)
class JobsAhead:
    """Jobs that were enqueued at a time still in the future."""

    jobs: int
    furthest: timedelta | None


@dataclass(frozen=True, slots=True)
class ComingOccurrence:
    name: str
    timetable: str
    zone: str
    next_occurrence: datetime
    last_occurrence: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Pin:
    """What keeps vacuum from removing rows, and for how long or how many transactions."""

    what: str
    pid: int | None
    name: str | None
    role: str | None
    application: str | None
    state: str | None
    lasting: timedelta | None
    transactions: int | None


@dataclass(frozen=True, slots=True)
class HiddenSessions:
    sessions: int
    role: str


@dataclass(frozen=True, slots=True)
class Partitions:
    """`missing` and `overdue` are days without a partition and days that retention should have dropped. `jobs` and
    `finished` count rows in the default partitions."""

    missing: list[str]
    overdue: list[str]
    jobs: int
    finished: int
    has_guard: bool


@dataclass(frozen=True, slots=True)
class Privileges:
    """`definer` owns the functions that change tables, and what they create."""

    role: str
    missing: list[str]
    definer: str
    owns_tables: bool
    may_create: bool


@dataclass(frozen=True, slots=True)
class DeadRows:
    name: str
    dead: int
    live: int
    vacuumed: timedelta | None


@dataclass(frozen=True, slots=True)
class Places:
    seen: int
    nowhere: int
    twice: int
    without_job: int
    examples: list[UUID] | None


@dataclass(frozen=True, slots=True)
class ScheduleState:
    name: str
    paused: bool
    late_by: timedelta


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    name: str
    replica: str
    lasting: timedelta


@dataclass(frozen=True, slots=True)
class LostSleepers:
    """`waiting` counts the processes that wait now."""

    processes: int
    oldest: timedelta | None
    waiting: int


class Examiner:
    """Use as `async with Examiner(url, schema) as examiner:`. `direct_url` bypasses the pooler."""

    def __init__(self, url: str, schema: str, direct_url: str | None = None) -> None:
        self._url = url
        self.direct_url = direct_url
        self._schema = check_schema(schema)
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def __aenter__(self) -> Self:
        self._connection = await open_connection(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.terminate()

    async def round_trip(self) -> RoundTrip:
        """Return the fastest of several, because the first one also prepares the statement."""
        found = []
        connection = await self._connected()
        for _ in range(_TIME_ASKED):
            before, started = datetime.now(UTC), time.monotonic()
            with translated():
                now: datetime = await connection.fetchval(statement("doctor_time", self._schema), timeout=_SECONDS)
            took = timedelta(seconds=time.monotonic() - started)
            found.append(RoundTrip(took, now - (before + took / 2)))
        return min(found, key=lambda each: each.took)

    async def is_pooled(self) -> bool:
        connection = await self._connected()
        with translated():
            return await is_pooled(connection)

    async def try_direct(self) -> None:
        """Raise HoldfastError unless the address past the pooler leads to the server itself."""
        (await open_session(self.direct_url or self._url)).terminate()

    async def server(self) -> Server:
        (row,) = await self._ask("server")
        return Server(**row)

    async def schema_version(self) -> int:
        return await Migrator(await self._connected(), self._schema).version()

    async def changed_functions(self) -> list[str]:
        """Return the names of functions that differ from this release or were edited by hand."""
        return list(await Migrator(await self._connected(), self._schema).changed_functions())

    async def clock(self) -> ClockRow | None:
        rows = await self._ask("clock")
        return ClockRow(**rows[0]) if rows else None

    async def expired_leases(self, tolerance: timedelta) -> ExpiredLeases:
        (row,) = await self._ask("leases", tolerance)
        return ExpiredLeases(**row)

    async def dead_letters(self, bound: int) -> list[DeadLetters]:
        return [DeadLetters(**row) for row in await self._ask("dead_letters", bound)]

    async def due(self, longer_than: timedelta, at_most: int) -> list[DueLane]:
        return [DueLane(**row) for row in await self._ask("due", longer_than, at_most)]

    async def newer_jobs(self, sample: int, at_most: int) -> list[NewerJobs]:
        return [NewerJobs(**row) for row in await self._ask("versions", sample, at_most, VERSION_HEADER)]

    async def jobs_ahead(self, further_than: timedelta, newest: int) -> JobsAhead:
        (row,) = await self._ask("ahead", further_than, newest)
        return JobsAhead(**row)

    async def coming(self, at_most: int) -> list[ComingOccurrence]:
        return [ComingOccurrence(**row) for row in await self._ask("coming", at_most)]

    async def pins(self, longer_than: timedelta, transactions: int, at_most: int) -> list[Pin]:
        return [Pin(**row) for row in await self._ask("horizon", longer_than, transactions, at_most)]

    async def hidden_sessions(self) -> HiddenSessions:
        (row,) = await self._ask("hidden")
        return HiddenSessions(**row)

    async def partitions(self, days: int, bound: int, retention: timedelta) -> Partitions:
        (row,) = await self._ask("partitions", days, bound, retention)
        return Partitions(**row)

    async def troubles(self) -> dict[str, str]:
        """Return what the latest pass of each maintenance chore could not do, and why."""
        return {row["chore"]: row["trouble"] for row in await self._ask("maintenance")}

    async def privileges(self) -> Privileges:
        (row,) = await self._ask("privileges")
        return Privileges(**row)

    async def dead_rows(self, more_than: int, per_live: int) -> list[DeadRows]:
        return [DeadRows(**row) for row in await self._ask("dead_rows", more_than, per_live)]

    async def schedules(self, late: timedelta, run: timedelta, at_most: int) -> list[ScheduleState]:
        return [ScheduleState(**row) for row in await self._ask("schedules", late, run, at_most)]

    async def unfinished_runs(self, longer_than: timedelta, at_most: int) -> list[UnfinishedRun]:
        return [UnfinishedRun(**row) for row in await self._ask("runs", longer_than, at_most)]

    async def lost_sleepers(self, tolerance: timedelta) -> LostSleepers:
        (row,) = await self._ask("sleepers", tolerance)
        return LostSleepers(**row)

    async def places(self, newest: int | None) -> Places:
        """Check that every job is in its place. `newest` None checks all jobs, however long that takes."""
        (row,) = await self._ask("places", newest, seconds=_SECONDS if newest is not None else _DEEP_SECONDS)
        return Places(**row)

    async def _ask(self, question: str, *arguments: object, seconds: float = _SECONDS) -> "list[asyncpg.Record]":
        connection = await self._connected()
        with translated():
            async with connection.transaction(readonly=True):
                bounds = statement("doctor_bounds", self._schema)
                await connection.execute(bounds, f"{seconds * 1000:.0f}")
                # The server gives up first. The client's limit applies only if the server cannot respond.
                sql = statement(f"doctor_{question}", self._schema)
                return await connection.fetch(sql, *arguments, timeout=seconds + 5)

    async def _connected(self) -> "asyncpg.Connection[asyncpg.Record]":
        """Return the connection, reopened after an outage, so a failed question does not fail all others."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await open_connection(self._url)
        return self._connection
