"""Runs everything that is due with the real worker, and reports the outcome."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from unittest.mock import patch
from uuid import UUID

from holdfast.app import Holdfast
from holdfast.domain.budget import Budget
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import Job, JobState, LeasedJob
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QUEUE, QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.store.contract import ClaimRequest, JobFilter
from holdfast.testing.attempt import RecordedFailures, hooked, in_this_process
from holdfast.testing.matching import listed
from holdfast.worker.hooks import Hooks
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.worker import Worker

MOST_JOBS = 100_000
_CLOSE_SECONDS = 30.0
# Together longer than the store may skip a lane, and longer than a transaction of the test should take to end.
_FRUITLESS_ROUNDS = 100
_FRUITLESS_SECONDS = 0.05
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that raised. `exception` is None when it was raised in the handler's own process."""

    job_id: UUID
    kind: str
    attempt: int
    code: str
    message: str
    exception: BaseException | None

    def __str__(self) -> str:
        return f"{self.kind}, attempt {self.attempt}: {self.message}"


@dataclass(frozen=True, slots=True)
class DrainReport:
    """`jobs` are the jobs that ran, as they are now, in the order in which they first ran.

    `endings` counts how attempts ended: succeed, retry, snooze, fail, exhaust, cancel. `unhandled` are jobs that were
    due but have no handler in this app.
    """

    jobs: tuple[Job, ...]
    endings: Mapping[str, int]
    errors: tuple[FailedAttempt, ...]
    unhandled: tuple[Job, ...]

    @property
    def succeeded(self) -> list[Job]:
        return self._in(JobState.SUCCEEDED)

    @property
    def failed(self) -> list[Job]:
        """Ended by a permanent error."""
        return self._in(JobState.FAILED)

    @property
    def dead(self) -> list[Job]:
        """Out of attempts."""
        return self._in(JobState.DEAD)

    @property
    def canceled(self) -> list[Job]:
        return self._in(JobState.CANCELED)

    @property
    def waiting(self) -> list[Job]:
        """Ran, and will run again: retried or snoozed."""
        return self._in(JobState.READY)

    def _in(self, state: JobState) -> list[Job]:
        return [job for job in self.jobs if job.state is state]


class HandlerFailed(AssertionError):
    """Attempts failed while draining; the exception of the first one is the cause. `report` has all of them."""

    def __init__(self, report: DrainReport, verb: str = "drain") -> None:
        shown = "".join(f"\n  {error}" for error in report.errors[:_SHOWN])
        more = f"\n  and {len(report.errors) - _SHOWN} more" if len(report.errors) > _SHOWN else ""
        number = "1 attempt" if len(report.errors) == 1 else f"{len(report.errors)} attempts"
        super().__init__(f"{number} failed; {verb}(raise_errors=False) reports instead of raising:{shown}{more}")
        self.report = report


class EndlessDrain(AssertionError):
    """`most` attempts were made, and more jobs are due."""


class HandlerNotStarted(AssertionError):
    """The process of a handler could not import it or open the app's lifespan, so the handler did not run."""

    def __init__(self, trouble: str) -> None:
        super().__init__(
            "a handler could not be started; define handlers, app and lifespan at the top of a module, or replace "
            f"app.lifespan in the test to run the handler in this process:\n{trouble}"
        )


class StuckDrain(AssertionError):
    """Jobs are due but cannot be claimed, because a transaction that does not end holds them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        number = "1 job is" if len(jobs) == 1 else f"{len(jobs)} jobs are"
        super().__init__(
            f"{number} due and cannot be claimed; end the transaction that holds the rows before the drain:\n"
            f"{listed(jobs[:_SHOWN])}" + ("\n  and more" if len(jobs) > _SHOWN else "")
        )


class Drain:
    """One drain: rounds of work at the same moment, between which the clock may be moved."""

    def __init__(self, app: Holdfast, most: int) -> None:
        self._app = app
        self._most = most
        self._failures = RecordedFailures(app.failures)
        self._claims: Counter[UUID] = Counter()
        self._kinds: Counter[str] = Counter()
        self._endings: Counter[str] = Counter()
        self._queues: set[str] = set()
        self._worker: Worker | None = None
        self._queue: QueueRunner | None = None
        self._exits = AsyncExitStack()
        """Ends the worker. Serving other queues takes another worker."""
        self._whole = AsyncExitStack()
        self._hooks = Hooks()

    async def __aenter__(self) -> Self:
        self._hooks = await self._whole.enter_async_context(hooked(self._app, children=self._has_children()))
        return self

    def _has_children(self) -> bool:
        """Whether handlers may run in processes, which must import the lifespan. They cannot import a test's fake."""
        return self._app.lifespan is self._app._given_lifespan

    async def __aexit__(self, *error: object) -> None:
        async with self._whole:
            await self._exits.aclose()

    async def run_due(self) -> None:
        """Run until no job with a handler is due."""
        fruitless = 0
        while jobs := await self._due(handled=True):
            attempts, left = self._claims.total(), self._left()
            queue = await self._serving({job.queue for job in jobs})
            await queue.run(Budget(items=left), to_end=True)
            if self._worker is not None and self._worker.not_started is not None:
                raise HandlerNotStarted(self._worker.not_started)
            fruitless = fruitless + 1 if self._claims.total() == attempts else 0
            if fruitless == _FRUITLESS_ROUNDS:
                raise StuckDrain(jobs)
            if fruitless:
                await asyncio.sleep(_FRUITLESS_SECONDS)

    def _left(self) -> int:
        """How many attempts may still be made."""
        left = self._most - self._claims.total()
        if left <= 0:
            kinds = ", ".join(f"{kind} ({number} times)" for kind, number in self._kinds.most_common(3))
            raise EndlessDrain(
                f"{self._most} attempts were made and more jobs are due; most attempts were of {kinds}. If a handler "
                f"enqueues or snoozes itself forever, limit the drain with until=; otherwise raise most="
            )
        return left

    async def _serving(self, queues: set[str]) -> QueueRunner:
        """Keep the worker from round to round, unless there is a queue that it does not serve."""
        if self._queue is None or not queues <= self._queues:
            await self._exits.aclose()
            self._queues |= queues
            self._queue = await self._exits.enter_async_context(self._working(tuple(sorted(self._queues))))
        return self._queue

    async def next_due(self) -> datetime | None:
        """When the next job with a handler may run."""
        times = [job.run_at for job in await self._ready() if job.run_at and self._app.handlers.get(job.kind)]
        return min(times, default=None)

    async def report(self, errors_before: Mapping[UUID, Sequence[Any]]) -> DrainReport:
        jobs, errors = [], []
        for id in self._claims:
            job = await self._app.jobs.get(id)
            if job is not None:
                jobs.append(job)
                new = [error for error in job.errors if error not in errors_before.get(id, ())]
                errors += [self._failed(job, error) for error in new]
        raised = [error for error in errors if error is not None]
        unhandled = await self._due(handled=False)
        return DrainReport(tuple(jobs), dict(self._endings), tuple(raised), tuple(unhandled))

    def _failed(self, job: Job, error: Mapping[str, str]) -> FailedAttempt | None:
        if error["type"] == "Cancel":
            # The handler or a person decided this: nothing went wrong.
            return None
        attempt = int(error["attempt"])
        message = f"{error['type']}: {error['message']}"
        raised = self._failures.raised.get((job.id, attempt))
        return FailedAttempt(job.id, job.kind, attempt, error["code"], message, raised)

    async def _ready(self) -> list[Job]:
        return await self._app.jobs.list(JobFilter(state=JobState.READY), MOST_JOBS)

    async def _due(self, *, handled: bool) -> list[Job]:
        now = await self._app.clock.now()
        return [
            job
            for job in await self._ready()
            if job.run_at and job.run_at <= now and (self._app.handlers.get(job.kind) is not None) is handled
        ]

    def _handlers(self) -> Handlers:
        if self._has_children():
            return self._app.handlers
        here = Handlers()
        for handler in self._app.handlers:
            here.add(in_this_process(handler))
        return here

    @asynccontextmanager
    async def _working(self, queues: tuple[str, ...]) -> AsyncIterator[QueueRunner]:
        """A worker with one slot, so jobs run one at a time, in the order in which they would be claimed."""
        opened = self._app.opened
        settings = WorkerSettings(concurrency=1, most_ahead=0, queues=queues)
        worker = Worker(
            opened.store,
            opened.renewer,
            self._handlers(),
            self._failures,
            settings,
            lambda: opened.finish_in,
            hooks=self._hooks,
        )
        self._worker = worker
        queue = QueueRunner(worker, Pacing(), QueueRuns(opened.runs, QUEUE, "test"))
        claim = opened.store.claim

        async def noted(request: ClaimRequest) -> list[LeasedJob]:
            jobs = await claim(request)
            self._claims.update(job.id for job in jobs)
            self._kinds.update(job.kind for job in jobs)
            return jobs

        with patch.object(opened.store, "claim", noted):
            try:
                yield queue
            finally:
                await queue.close(_CLOSE_SECONDS)
        self._endings.update(worker.tally)
