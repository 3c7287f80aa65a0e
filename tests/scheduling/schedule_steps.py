"""Helpers for the tests of scheduled runners: boards and runners on a store whose clock the test moves."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast.domain.budget import Budget
from holdfast.domain.cron import Missed, parse_timetable
from holdfast.domain.failures import Failures
from holdfast.domain.job import Job
from holdfast.domain.json_text import decode, encode
from holdfast.domain.runner import Runner, RunnerReport
from holdfast.domain.signals import Signals
from holdfast.scheduling.board import ScheduleBoard
from holdfast.scheduling.inline import InlineRunner
from holdfast.scheduling.inline_attempt import InlineParts
from holdfast.scheduling.job_schedules import JobSchedules
from holdfast.scheduling.schedules import Declared, InlineFunction, Timing
from holdfast.store.contract import JobFilter
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.schedules import JobTemplate, Run, RunStore, Schedule, ScheduleStore
from tests.databases import StoreCase, opened_store

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ALWAYS = timedelta(0)
"""Makes a board query the store each time, because its own clock does not notice that a test moves the store's."""


def declared(
    name: str = "report",
    timetable: str = "* * * * *",
    zone: str = "UTC",
    missed: Missed = Missed.ONCE,
    missed_limit: int = 100,
    job: JobTemplate | None = JobTemplate("work", encode({})),  # noqa: B008 - frozen
) -> Declared:
    return Declared(name, Timing(parse_timetable(timetable, zone), missed, missed_limit), job)


@dataclass(frozen=True)
class Replica:
    """One process's view of the store."""

    name: str
    schedules: ScheduleStore
    runs: RunStore

    def job_schedules(self, *schedules: Declared, look_every: timedelta = ALWAYS) -> JobSchedules:
        return JobSchedules(ScheduleBoard(self.schedules, schedules, look_every), self.schedules, self.name)

    def inline(
        self,
        function: InlineFunction,
        timetable: str = "* * * * *",
        missed: Missed = Missed.ONCE,
        *,
        name: str = "cycle",
        look_every: timedelta = ALWAYS,
        failures: Failures | None = None,
        signals: Signals | None = None,
        rest: Callable[[int], float] = lambda _failures: 0.0,
    ) -> InlineRunner:
        board = ScheduleBoard(self.schedules, [declared(name, timetable, missed=missed, job=None)], look_every)
        parts = InlineParts(
            name, function, f"lock of {name}", self.schedules, self.runs, self.name, failures or Failures()
        )
        return InlineRunner(parts, board, signals, rest)


def replica(case: StoreCase, name: str = "replica-1") -> Replica:
    return Replica(name, case.schedules, case.runs)


@asynccontextmanager
async def replicas(case: StoreCase, number: int) -> AsyncIterator[list[Replica]]:
    """Yield replicas, each with its own store if the store is outside the process."""
    async with AsyncExitStack() as stack:
        views = []
        for index in range(number):
            schedules, runs = case.schedules, case.runs
            if isinstance(case.store, PostgresStore):
                store = await stack.enter_async_context(opened_store(case.store.url, pool_size=2))
                schedules, runs = PostgresSchedules(store), PostgresRuns(store)
            views.append(Replica(f"replica-{index}", schedules, runs))
        yield views


async def once(runner: Runner, budget: Budget | None = None) -> RunnerReport:
    """Run one pass to its end."""
    return await runner.run(budget or Budget(), to_end=True)


async def jobs_of(case: StoreCase) -> list[Job]:
    """Return all jobs, oldest first."""
    return (await case.reader.list(JobFilter(), 1_000_000))[::-1]


def occurrence_of(job: Job) -> datetime | None:
    """Return the occurrence for which a job was made, according to its header."""
    assert job.headers is not None
    occurrence = job.headers.get("holdfast.occurrence")
    return None if occurrence is None else datetime.fromisoformat(occurrence)


async def shown(case: StoreCase, name: str) -> Schedule:
    (schedule,) = [schedule for schedule in await case.schedules.list() if schedule.name == name]
    return schedule


async def runs_of(case: StoreCase, name: str = "cycle") -> list[Run]:
    """Return the runs of a runner, oldest first."""
    return (await case.runs.list(name, 1000))[::-1]


def error_code(run: Run) -> object:
    return None if run.error is None else decode(run.error)["code"]


class Counted:
    """A schedule store that reports each call."""

    def __init__(self, schedules: ScheduleStore, on_call: Callable[[str], None]) -> None:
        self._schedules = schedules
        self._on_call = on_call

    def __getattr__(self, name: str) -> object:
        self._on_call(name)
        return getattr(self._schedules, name)
