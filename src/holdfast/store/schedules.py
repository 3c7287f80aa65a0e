"""What a store promises about schedules and runs; `contract.py` has the verbs of jobs.

A slot is one moment of a schedule. Whoever moves a schedule on names the slot that it saw (compare and set), so that
however many processes see the same slot, one of them takes it.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from holdfast.cron import Missed
from holdfast.job import NewJob
from holdfast.json_text import Json


class Origin(StrEnum):
    CODE = "code"
    """Declared by an app; moved on only by processes whose app declares it."""
    STORED = "stored"
    """Saved at run time; moved on by any process."""


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The job that each slot makes."""

    kind: str
    payload: Json
    queue: str = "default"
    priority: int = 5
    tenant: str = ""
    headers: Json | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """`job` is None for an inline runner. `first_slot` is used when the schedule is new or its timetable changed."""

    name: str
    timetable: str
    zone: str
    missed: Missed
    missed_limit: int
    job: JobTemplate | None
    origin: Origin
    first_slot: datetime


@dataclass(frozen=True, slots=True)
class Schedule:
    """`next_slot` is the oldest slot that is not done. `run_now` asks for a run beside the slots."""

    name: str
    timetable: str
    zone: str
    missed: Missed
    missed_limit: int
    job: JobTemplate | None
    origin: Origin
    next_slot: datetime
    last_slot: datetime | None
    paused: bool
    run_now: bool


@dataclass(frozen=True, slots=True)
class DueSchedules:
    """`now` is the store's clock; `next_in` is the time until the next one is due, None if there is none."""

    now: datetime
    due: list[Schedule]
    next_in: timedelta | None


@dataclass(frozen=True, slots=True)
class NewRun:
    name: str
    replica: str
    slot: datetime | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded execution of a runner. Unfinished: `finished_at` is None."""

    id: int
    name: str
    replica: str
    slot: datetime | None
    started_at: datetime
    finished_at: datetime | None
    result: Json | None
    error: Json | None


class Singleton(Protocol):
    """The advisory transaction lock of one name, held until its context ends or its connection is lost."""

    async def due(self, name: str) -> DueSchedules:
        """The schedule as it stands under the lock; `due` is empty if another replica has done the slot meanwhile."""

    async def done(self, schedule: Schedule, next_slot: datetime) -> None:
        """Mark the slot (or the run-now request) done, in the transaction that holds the lock, and end it."""

    async def lost(self) -> None:
        """Returns when the lock is lost: whoever works under it must stop."""


class ScheduleStore(Protocol):
    async def declare(self, schedules: Sequence[NewSchedule]) -> None:
        """Add what is new; change what differs. The slots of an unchanged timetable and a pause are kept."""

    async def save(self, schedule: NewSchedule) -> None:
        """Like declare, for one that is made at run time."""

    async def remove(self, name: str) -> bool: ...

    async def list(self) -> list[Schedule]: ...

    async def now(self) -> datetime:
        """The store's clock, by which slots are decided."""

    async def due(self, declared: Sequence[str]) -> DueSchedules:
        """Job schedules and inline runners that are due or were asked to run now: these names, and all stored ones."""

    async def advance(self, schedule: Schedule, next_slot: datetime, jobs: Sequence[NewJob], run: NewRun) -> bool:
        """In one transaction: move a job schedule on from the slot that was seen, enqueue its jobs, record the run.

        False, and nothing is done, if another process moved it on or paused it meanwhile. Also takes back `run_now`.
        """

    async def pause(self, name: str) -> bool: ...

    async def resume(self, name: str, next_slot: datetime) -> bool:
        """Slots that passed during the pause are not missed: it goes on at `next_slot`."""

    async def run_now(self, name: str) -> bool: ...

    def singleton(self, lock: str) -> AbstractAsyncContextManager[Singleton | None]:
        """The lock of that name, or None at once if somebody else has it."""


class RunStore(Protocol):
    async def start(self, run: NewRun) -> int: ...

    async def finish(self, id: int, result: Json | None, error: Json | None) -> None: ...

    async def record(self, run: NewRun, started_ago: timedelta, result: Json | None, error: Json | None) -> None:
        """A run that is over already, in one row."""

    async def abandon(self, name: str, error: Json) -> int:
        """End the unfinished runs of a name whose replica is gone: the caller holds the name's lock."""

    async def list(self, name: str | None, limit: int) -> list[Run]:
        """The newest first."""
