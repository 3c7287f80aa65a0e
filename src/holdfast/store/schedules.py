"""What a store promises about schedules and runs; `contract.py` has the verbs for jobs.

An occurrence is one moment of a schedule's timetable. A process that advances a schedule names the occurrence it saw
(compare and set): no matter how many processes see the same occurrence, only one takes it.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Protocol

from holdfast.domain.cron import Missed
from holdfast.domain.duration import to_aware
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewJob, check_name
from holdfast.domain.json_text import Json


class Origin(StrEnum):
    CODE = "code"
    """Declared by an app. Only processes whose app declares it advance it; removed from the code, it rests."""
    STORED = "stored"
    """Saved at run time. Any process advances it."""


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The job that each occurrence creates."""

    kind: str
    payload: Json
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""
    headers: Json | None = None
    max_attempts: int | None = None

    def job(self, headers: Json | None) -> NewJob:
        """Return a job from this template, with these headers."""
        return NewJob(
            kind=self.kind,
            payload=self.payload,
            queue=self.queue,
            priority=self.priority,
            tenant=self.tenant,
            headers=headers,
            max_attempts=self.max_attempts,
        )


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """`job` is None for an inline runner. `first_occurrence` applies if the schedule is new or its timetable
    changed."""

    name: str
    timetable: str
    zone: str
    missed: Missed
    missed_limit: int
    job: JobTemplate | None
    origin: Origin
    first_occurrence: datetime

    def __post_init__(self) -> None:
        check_name("schedule", self.name)
        to_aware(self.first_occurrence, "first_occurrence")
        if not 1 <= self.missed_limit <= 10_000:
            raise InvalidInput(f"missed_limit: {self.missed_limit!r} is not a number from 1 to 10000")
        if self.job is not None:
            self.job.job(self.job.headers)
        elif self.origin is Origin.STORED:
            raise InvalidInput(f"schedule {self.name!r}: only code can have a function to run; give it a job")


@dataclass(frozen=True, slots=True)
class Schedule:
    """`next_occurrence` is the oldest occurrence that is not done; `last_occurrence` is the newest that ran.

    `run_now` counts the requests for an extra run that are still unanswered.
    """

    name: str
    timetable: str
    zone: str
    missed: Missed
    missed_limit: int
    job: JobTemplate | None
    origin: Origin
    next_occurrence: datetime
    last_occurrence: datetime | None
    paused: bool
    run_now: int


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """`now` is the store's clock; `next_in` is the time until another schedule comes due, or None if none will.

    A schedule is due at its occurrence unless it is paused. A run-now request makes even a paused schedule due.
    """

    now: datetime
    due: list[Schedule]
    next_in: timedelta | None


@dataclass(frozen=True, slots=True)
class NewRun:
    """`occurrence` is None for an extra run and for runners without occurrences."""

    name: str
    replica: str
    occurrence: datetime | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded execution of a runner. `finished_at` is None while it is unfinished."""

    id: int
    name: str
    replica: str
    occurrence: datetime | None
    started_at: datetime
    finished_at: datetime | None
    result: Json | None
    error: Json | None


class Singleton(Protocol):
    """The advisory transaction lock of one name, held until its context ends or its connection is lost."""

    async def due(self, name: str) -> DueSchedules:
        """Return the schedule as it is under the lock. `due` is empty if another replica has done the occurrence."""

    async def done(
        self,
        schedule: Schedule,
        next_occurrence: datetime,
        occurrence: datetime | None,
        run: int,
        result: Json | None,
        error: Json | None,
    ) -> None:
        """Mark `occurrence` and the run-now requests that `schedule` shows as done, finish the run, release the lock.

        All of this happens in the transaction that holds the lock. If the lock was lost, StoreUnavailable is raised and
        nothing is changed. (If only the reply was lost, everything is changed, and the run is found finished.) A
        schedule that has since been advanced, changed or removed keeps its current occurrence.
        """

    async def lost(self) -> None:
        """Return when the lock is lost. Work under the lock must stop then."""


class ScheduleStore(Protocol):
    async def declare(self, schedules: Sequence[NewSchedule]) -> None:
        """Add new schedules and update changed ones. Pauses, and the occurrences of unchanged timetables, are kept.

        Idempotent and cheap enough for every process start. A stored schedule of the same name becomes the code's.
        """

    async def save(self, schedule: NewSchedule) -> None:
        """Like `declare`, for a schedule created at run time. Raises InvalidInput if code has declared the name."""

    async def remove(self, name: str) -> bool: ...

    async def list(self) -> list[Schedule]:
        """Return all schedules, sorted by name."""

    async def now(self) -> datetime:
        """Return the store's time, by which occurrences are decided."""

    async def due(self, declared: Sequence[str]) -> DueSchedules:
        """Return due job schedules and inline runners, oldest occurrence first: the declared names and all stored
        ones."""

    async def advance(
        self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
    ) -> bool:
        """In one transaction, advance a job schedule from the occurrence seen, enqueue its jobs, and record the run.

        `run.occurrence` is the newest occurrence that the jobs are for. The run-now requests that `schedule` shows are
        answered. Returns False and does nothing if another process has since advanced, changed or paused it, or is
        about to. While the schedule is paused, only a run-now request can be answered, and `next_occurrence` must not
        change.
        """

    async def put_back(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        """Move the schedule back to an earlier occurrence than the one seen, which was set by a clock that ran ahead.

        Returns False and does nothing if it has since been advanced, changed, paused or removed, or is about to be.
        """

    async def pause(self, name: str) -> bool: ...

    async def resume(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        """Continue at `next_occurrence`. Occurrences during the pause do not count as missed. No-op if not paused.

        Returns False and does nothing if the schedule is gone or its timetable or zone differs from the one seen.
        """

    async def run_now(self, name: str) -> bool:
        """Request an extra run, even of a paused schedule. Requests that are open at the same time share one run."""

    def singleton(self, lock: str) -> AbstractAsyncContextManager[Singleton | None]:
        """The lock of that name, or None at once if another process holds it."""


class RunStore(Protocol):
    async def start(self, run: NewRun) -> int: ...

    async def finish(self, id: int, result: Json | None, error: Json | None) -> bool:
        """Return False and change nothing if the run is already finished."""

    async def record(self, run: NewRun, started_ago: timedelta, result: Json | None, error: Json | None) -> None:
        """Record a run that is already over, in one row."""

    async def abandon(self, name: str, error: Json) -> int:
        """End the unfinished runs of a name whose replica is gone. The caller holds the name's lock."""

    async def list(self, name: str | None, limit: int) -> list[Run]:
        """Return the newest runs first, by start time."""


def lock_key(lock: str) -> int:
    """The number PostgreSQL uses for a lock: the first 8 bytes of the SHA-256 of its UTF-8 text, as a signed big-endian
    number. `holdfast.lock_key(text)` returns the same in SQL."""
    return int.from_bytes(sha256(lock.encode()).digest()[:8], "big", signed=True)
