"""An inline runner: a function of the app that runs at its occurrences inside the process, on one replica at a time.

It runs under an advisory lock. At the end, its occurrence is marked as done in the transaction that holds the lock, so
after a kill another replica runs that occurrence again. In the background, it runs as a task alongside later ticks.
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.domain.budget import Budget
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.runner import RunnerReport
from holdfast.domain.shared_process import SharedProcess
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.scheduling.board import ScheduleBoard
from holdfast.scheduling.inline_attempt import MAKES_JOBS, InlineAttempt, InlineParts
from holdfast.scheduling.inline_call import GRACE_SECONDS
from holdfast.worker.threads import HandlerThreads

log = get_logger("holdfast.schedules")

STILL_RUNNING = "still running from its last occurrence"
MAKES_WAY = "a job that is suspected of killing workers has the process"

_LAST_STEP_SECONDS = 5.0
_RETRY_SECONDS = 1.0


class InlineRunner:
    """The function is an `async def`, or a plain `def` that is called in a thread. It may return a dict of counts.

    A thread cannot be stopped. If it keeps running after an interruption, it keeps the lock until it or the process
    ends.

    `rest` takes the number of failed runs in a row and returns the seconds to wait before the next occurrence.
    """

    def __init__(
        self,
        parts: InlineParts,
        board: ScheduleBoard,
        signals: Signals | None = None,
        rest: Callable[[int], float] = lambda _failures: 0.0,
        process: SharedProcess | None = None,
    ) -> None:
        self._parts = parts
        self._board = board
        self._signals = signals or Signals()
        self._rest = rest
        self._process = process or SharedProcess()
        self._process.join(self)
        self._failures = 0
        self._rests_until = -math.inf
        """Only used in the background; a single tick runs whatever is due."""
        self._threads = HandlerThreads()
        self._attempt: InlineAttempt | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_collected = False
        self._stop_requested = asyncio.Event()
        self._retry_at = -math.inf
        self._is_told = False

    @property
    def name(self) -> str:
        return self._parts.name

    @property
    def is_quiet(self) -> bool:
        return self._task is None or self._task.done()

    def make_way(self) -> None:
        """There is nothing to give back: a run that has begun is waited for."""

    def go_on(self) -> None:
        """It happens in a tick, and the next tick asks `due_in`."""

    def due_in(self) -> float | None:
        if self._attempt is None:
            if self._process.is_beginning or self._process.is_taken_from(self):
                return None
            due_in = 0.0 if self._board.is_due(self.name) else self._board.look_in()
            return max(due_in, max(self._retry_at, self._rests_until) - time.monotonic())
        if self._is_to_be_collected:
            return 0.0
        overlap = self._attempt.overlap
        return None if overlap is None else max(0.0, (overlap - self._board.now()).total_seconds())

    def wake(self) -> None:
        self._board.look_soon()
        self._retry_at = -math.inf

    def stop(self) -> None:
        self._stop_requested.set()

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        report = RunnerReport(self.name)
        self._collect(report)
        if self._attempt is not None and (self._is_collected or not to_end):
            self._tell_overlap(report)
        elif not to_end:
            # The next occurrence may have come due during a run that has just failed.
            is_rested = time.monotonic() >= self._rests_until
            if is_rested and not self._process.is_beginning and await self._may_begin(budget):
                self._begin(budget)
        elif self._process.is_taken_from(self):
            report.skipped = MAKES_WAY
        else:
            # Loops if occurrences wait for their turn. What cannot be done now is left to the next tick.
            is_done = True
            while is_done and (self._attempt is not None or await self._may_begin(budget)):
                is_done = await self._to_end(self._attempt or self._begin(budget), budget)
                self._collect(report)
        self._tell_if_it_makes_jobs(report)
        return report

    def _tell_if_it_makes_jobs(self, report: RunnerReport) -> None:
        """Warn once: a version of the app that started later made it a job schedule, and here it will stay one."""
        if self._board.has_job(self.name):
            report.skipped = MAKES_JOBS
        if report.skipped == MAKES_JOBS and not self._is_told:
            self._is_told = True
            log.warning(MAKES_JOBS, runner=self.name)

    async def _to_end(self, attempt: InlineAttempt, budget: Budget) -> bool:
        """Wait for the attempt; return whether it has ended and completed its occurrence."""
        await self._until_reported(budget.seconds_left)
        if not self._is_reported and not self._stop_requested.is_set():
            attempt.interrupt("its tick ran out of time")
            await self._until_reported(GRACE_SECONDS + _LAST_STEP_SECONDS)
        return self._is_reported and not attempt.is_undone

    async def _may_begin(self, budget: Budget) -> bool:
        if budget.is_spent or self._stop_requested.is_set() or time.monotonic() < self._retry_at:
            return False
        if self._process.is_taken_from(self):
            return False
        await self._board.look()
        return self._board.is_due(self.name)

    def _begin(self, budget: Budget) -> InlineAttempt:
        attempt = self._attempt = InlineAttempt(self._parts, self._threads, self._signals)
        self._is_collected = False
        self._task = asyncio.create_task(attempt.execute())
        self._task.add_done_callback(lambda _: attempt.tell())
        budget.take(1)
        return attempt

    @property
    def _is_reported(self) -> bool:
        """True as soon as the task is done, even if its done callback has not run yet."""
        if self._attempt is None or self._task is None:
            return False
        return self._attempt.reported.is_set() or self._task.done()

    @property
    def _is_to_be_collected(self) -> bool:
        """Whether there is a new report, or an attempt that outlived its report has ended."""
        return (self._is_reported and not self._is_collected) or (self._task is not None and self._task.done())

    def _collect(self, report: RunnerReport) -> None:
        """Merge new results into the report. Errors of the runner itself, not of its function, are raised."""
        attempt, task = self._attempt, self._task
        if attempt is None or task is None:
            return
        if self._is_reported and not self._is_collected:
            self._is_collected = True
            self._take_in(attempt, report)
        if task.done():
            self._attempt = self._task = None
            if not task.cancelled():
                task.result()

    def _take_in(self, attempt: InlineAttempt, report: RunnerReport) -> None:
        report.add(attempt.report)
        if attempt.is_undone:
            # Retry soon even if looks are rare: the replica that has the lock may be gone by the next occurrence.
            self._retry_at = time.monotonic() + min(self._board.look_seconds, _RETRY_SECONDS)
        else:
            self._board.settle(self.name)
            if attempt.report.failed:
                self._failures += 1
                self._rests_until = time.monotonic() + self._rest(self._failures)
            elif attempt.report.processed:
                self._failures, self._rests_until = 0, -math.inf
        if attempt.next_occurrence is not None:
            self._board.expect(*attempt.next_occurrence)

    def _tell_overlap(self, report: RunnerReport) -> None:
        report.skipped = STILL_RUNNING
        occurrence = None if self._attempt is None else self._attempt.overlapped(self._board.now())
        if occurrence is not None:
            log.warning(STILL_RUNNING, runner=self.name, occurrence=occurrence.isoformat())

    async def _until_reported(self, seconds: float) -> None:
        """Wait for the report, the timeout or a stop."""
        if self._attempt is None:
            return
        signals = [asyncio.ensure_future(event.wait()) for event in (self._attempt.reported, self._stop_requested)]
        try:
            await asyncio.wait(
                signals, timeout=None if seconds == math.inf else seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for signal in signals:
                signal.cancel()
            await asyncio.gather(*signals, return_exceptions=True)

    async def close(self, seconds: float) -> RunnerReport | None:
        self.stop()
        attempt, task = self._attempt, self._task
        report = RunnerReport(self.name)
        if attempt is not None and task is not None:
            await self._signals.unless_hurried(_within(seconds, attempt.reported))
            attempt.interrupt("the process was stopped before the function was done")
            await _within(GRACE_SECONDS + _LAST_STEP_SECONDS, attempt.reported)
            # A function that cannot be stopped keeps running without the lock until the process ends.
            task.cancel()
            await asyncio.wait({task}, timeout=_LAST_STEP_SECONDS)
        self._threads.close()
        try:
            self._collect(report)
        except StoreUnavailable as error:
            report.error = str(error)
        return report if attempt is not None else None


async def _within(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == math.inf else seconds):
            await event.wait()
