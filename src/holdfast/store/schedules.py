"""What a store promises about schedules and runs; `contract.py` has the verbs of jobs.

An occurrence is one moment of a schedule's timetable. A process that moves a schedule on names the occurrence that it
saw (compare and set): however many processes see the same occurrence, one of them takes it.
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
    """Declared by an app; moved on only by processes whose app declares it. Gone from the code, it rests."""
    STORED = "stored"
    """Saved at run time; moved on by any process."""


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The job that each occurrence makes."""

    kind: str
    payload: Json
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""
    headers: Json | None = None
    max_attempts: int | None = None

    def job(self, headers: Json | None) -> NewJob:
        """One job of this template, with these headers."""
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
    """`job` is None for an inline runner. `first_occurrence` counts if the schedule is new or its timetable changed."""

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
    """`next_occurrence` is the oldest occurrence that is not done; `last_occurrence` the newest that ran.

    `run_now` counts the requests for an extra run that no such run has answered yet.
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
    """`now` is the store's clock; `next_in` the time until another one comes due, None if none will.

    A schedule is due at its occurrence unless it is paused, and while it is asked to run now even then.
    """

    now: datetime
    due: list[Schedule]
    next_in: timedelta | None


@dataclass(frozen=True, slots=True)
class NewRun:
    """`occurrence` is None for an extra run, and for runners that have none."""

    name: str
    replica: str
    occurrence: datetime | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded execution of a runner. Unfinished: `finished_at` is None."""

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
        """The schedule as it stands under the lock; `due` is empty if another replica has done the occurrence."""

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

        All in the transaction that holds the lock: StoreUnavailable, and nothing is changed, if the lock was lost. (Or
        everything is, if only the reply was: then the run is found finished.) A schedule that was moved on, changed or
        removed meanwhile keeps the occurrence that it has now.
        """

    async def lost(self) -> None:
        """Returns when the lock is lost: whoever works under it must stop."""


class ScheduleStore(Protocol):
    async def declare(self, schedules: Sequence[NewSchedule]) -> None:
        """Add what is new; change what differs. The occurrences of an unchanged timetable and a pause are kept.

        Idempotent and cheap, for every start of every process. A stored schedule of the same name becomes the code's.
        """

    async def save(self, schedule: NewSchedule) -> None:
        """Like declare, for one that is made at run time. InvalidInput if code has declared one of that name."""

    async def remove(self, name: str) -> bool: ...

    async def list(self) -> list[Schedule]:
        """All of them, by name."""

    async def now(self) -> datetime:
        """The store's clock, by which occurrences are decided."""

    async def due(self, declared: Sequence[str]) -> DueSchedules:
        """Job schedules and inline runners that are due, oldest occurrence first: these names, and all stored ones."""

    async def advance(
        self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
    ) -> bool:
        """In one transaction: move a job schedule on from the occurrence seen, enqueue its jobs, record the run.

        `run.occurrence` is the newest one that the jobs are for. Run-now requests that `schedule` shows are answered.
        False, and nothing is done, if another process moved it on, changed or paused it meanwhile, or is about to.
        While paused, only a run-now request can be answered, and `next_occurrence` has to stay what it was.
        """

    async def pause(self, name: str) -> bool: ...

    async def resume(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        """Go on at `next_occurrence`; what passed during the pause was not missed. Unpaused, it is left alone.

        False, and nothing is done, if it is gone or has another timetable or zone than the one that was seen.
        """

    async def run_now(self, name: str) -> bool:
        """Ask for an extra run, also of a paused schedule. Requests that are open together get one run."""

    def singleton(self, lock: str) -> AbstractAsyncContextManager[Singleton | None]:
        """The lock of that name, or None at once if somebody else has it."""


class RunStore(Protocol):
    async def start(self, run: NewRun) -> int: ...

    async def finish(self, id: int, result: Json | None, error: Json | None) -> bool:
        """False, and nothing is changed, if the run is finished already."""

    async def record(self, run: NewRun, started_ago: timedelta, result: Json | None, error: Json | None) -> None:
        """A run that is over already, in one row."""

    async def abandon(self, name: str, error: Json) -> int:
        """End the unfinished runs of a name whose replica is gone: the caller holds the name's lock."""

    async def list(self, name: str | None, limit: int) -> list[Run]:
        """The newest first, by their start."""


def lock_key(lock: str) -> int:
    """The number by which PostgreSQL knows a lock: the first 8 bytes of the SHA-256 of its UTF-8 text, as a signed
    big-endian number. `holdfast.lock_key(text)` gives the same in SQL."""
    return int.from_bytes(sha256(lock.encode()).digest()[:8], "big", signed=True)
