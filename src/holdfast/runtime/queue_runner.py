"""The runner for a queue: fills the worker's free slots and rescues expired leases."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Protocol

from holdfast.domain.budget import Budget
from holdfast.domain.crash_points import reach
from holdfast.domain.errors import HoldfastError, SchemaMismatch, StoreUnavailable
from holdfast.domain.lifecycle import Move
from holdfast.domain.runner import RunnerReport
from holdfast.logs.records import get_logger
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.wake import LONGEST_SLEEP, Told
from holdfast.worker.loop import cancel_within
from holdfast.worker.turn import Turn
from holdfast.worker.worker import Rescue, Worker

log = get_logger("holdfast.worker")

QUEUE = "queue"

_RESCUE_FAILED_SECONDS = 1.0
_NOW = -math.inf
_LAST_RUN_SECONDS = 1.0
_UNTOLD = 0.2
_UNDONE = frozenset({Move.RELEASE, Move.INTERRUPT, "lost", "stale"})
_DEAD = (Move.FAIL, Move.EXHAUST)


async def _nothing() -> None:
    """The default for `before_start`."""


class Sleeper(Protocol):
    """Something that is notified of new work while it waits with free slots, such as a listener on PostgreSQL."""

    def looks(self) -> None:
        """Called before each claim. One of the methods below is called next, depending on the result."""

    def asleep(self, *, is_short: bool = False) -> Told | None:
        """Called before a wait for work. Returns how long producers have known to notify us; None if they do not yet.

        `is_short`: some kind is at its limit, so notifications that we received are passed on to others.
        """

    def awake(self, *, is_full: bool) -> None:
        """Called instead of waiting. `is_full`: all slots are taken, so notifications that we received are passed on to
        others; otherwise the next claim follows immediately."""


class QueueRunner:
    def __init__(
        self,
        worker: Worker,
        pacing: Pacing,
        runs: QueueRuns,
        name: str = QUEUE,
        *,
        sleeper: Sleeper | None = None,
        before_start: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`before_start` runs before the first claim. If it fails, so does the runner, which tries again on its next
        turn."""
        self._worker = worker
        self._pacing = pacing
        self._runs = runs
        self._name = name
        self._sleeper = sleeper
        self._before_start = before_start
        self._random = Random()  # noqa: S311 - spreads turns, guards nothing
        self._is_started = False
        self._turn_at = self._rescue_at = _NOW
        self._is_poll = False
        """Whether the next turn, unless something wakes us earlier, is a mere poll: nothing is known to be due then."""
        self._empty_turns = self._failed_rescues = 0
        self._reported: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self._name

    def due_in(self) -> float:
        if self._worker.may_claim:
            return 0.0
        return max(0.0, min(self._turn_at, self._rescue_at) - time.monotonic())

    def wake(self) -> None:
        self._turn_at = _NOW

    def expect(self) -> None:
        """Called before the first turn of a process that runs in the background."""
        self._worker.expect()

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        try:
            return await self._turn(budget, to_end=to_end)
        finally:
            self._worker.has_begun()

    async def _turn(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        if not self._is_started:
            reach("declare.before")
            await self._before_start()
            reach("declare.after")
            self._worker.start()
            self._is_started = True
        if to_end:
            await self._work_to_end(budget)
        else:
            # A turn may be for the rescue only.
            if self._is_turn_due:
                await self._work_once(budget)
            # The rescue comes last: a turn that was triggered by a new job must not wait while the leases are read.
            await self._rescue()
        report = self._report()
        await self._runs.write()
        return report

    @property
    def _is_turn_due(self) -> bool:
        return self._worker.may_claim or self._turn_at <= time.monotonic()

    async def _work_once(self, budget: Budget) -> None:
        """Make one claim only, so that other runners have their turn before the next one."""
        looks_first = self._is_poll and self._turn_at != _NOW and not self._worker.may_claim
        # Set before the claim, not after it, so that a wake-up during the claim is not lost.
        self._turn_at = math.inf
        if self._sleeper is not None:
            self._sleeper.looks()
        try:
            turn = await self._worker.fill(budget.items_left, looks_first=looks_first)
        except BaseException:
            self._turn_at = _NOW
            raise
        if turn.claimed:
            self._runs.begin()
        self._plan_next_turn(turn)

    async def _work_to_end(self, budget: Budget) -> None:
        """Work until nothing is due and nothing runs, or until the budget is spent."""
        while not budget.is_spent:
            await self._rescue()
            self._worker.something_ended.clear()
            was_empty = self._worker.is_empty
            turn = await self._worker.fill(budget.items_left, to_end=True)
            budget.take(turn.claimed)
            if turn.claimed:
                self._runs.begin()
            if was_empty and turn.is_idle and not turn.claimed:
                return
            if not turn.claimed and turn.again_in:
                await self._wait(budget, turn.again_in)
        while not self._worker.is_empty and budget.seconds_left:
            self._worker.something_ended.clear()
            await self._wait(budget, math.inf)

    async def _rescue(self) -> None:
        """Do one round of rescue. If there is more, the next turn does it, after its claim."""
        if time.monotonic() >= self._rescue_at:
            try:
                rescue = await self._worker.rescue()
            except (StoreUnavailable, SchemaMismatch):
                raise
            except Exception as error:  # noqa: BLE001 - logged below
                # Claimable jobs must not wait for jobs that cannot be rescued.
                rescue = self._failed_rescue(error)
            else:
                self._failed_rescues = 0
            self._rescue_at = time.monotonic() + rescue.again_in
            if rescue.rescued:
                self._turn_at = _NOW

    def _failed_rescue(self, error: Exception) -> Rescue:
        self._failed_rescues += 1
        if self._failed_rescues == 1:
            unforeseen = None if isinstance(error, HoldfastError) else error
            log.error("rescue failed, trying again", runner=self._name, error=str(error), exc_info=unforeseen)
        return Rescue(0, max(_RESCUE_FAILED_SECONDS, self._pacing.error(self._failed_rescues, self._random)))

    def _plan_next_turn(self, turn: Turn) -> None:
        wait = turn.again_in
        self._is_poll = False
        if turn.is_idle:
            self._empty_turns = 1 if turn.claimed else self._empty_turns + 1
            told = None if self._sleeper is None else self._sleeper.asleep(is_short=turn.is_short)
            is_busy = bool(turn.claimed and self._pacing.busy_delay)
            if is_busy:
                self._empty_turns, idle = 0, self._pacing.busy(self._random)
            else:
                # A claim that found something made no look, so it is unknown when the next job is due.
                idle = self._pacing.idle(self._empty_turns, self._random, told=None if turn.claimed else told)
            if self._sleeper is not None and told is None and not is_busy:
                # Producers do not ring for us now: either jobs come too fast for a ring each, or producers are about to
                # learn of us. If neither is true, the doubling soon leads back to the usual waits.
                soonest = self._pacing.idle_min.total_seconds() * _UNTOLD
                idle = min(idle, soonest * 2.0 ** min(self._empty_turns - 1, 30))
            if self._sleeper is not None:
                idle = min(idle, LONGEST_SLEEP)
            # After shorter waits there probably is something, so a worker on a trickle of jobs claims without a look.
            self._is_poll = min(self._pacing.idle_max.total_seconds(), LONGEST_SLEEP) <= idle < wait
            wait = min(wait, idle)
        elif self._sleeper is not None:
            self._sleeper.awake(is_full=not turn.claimed)
        self._turn_at = min(self._turn_at, time.monotonic() + wait)

    async def _wait(self, budget: Budget, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, self._pacing.idle_max.total_seconds(), budget.seconds_left)):
                await self._worker.something_ended.wait()

    def _report(self) -> RunnerReport:
        tally = dict(self._worker.tally)
        if tally == self._reported:
            # The common case.
            return RunnerReport(self._name)
        since = Counter(tally) - Counter(self._reported)
        self._reported = tally
        self._runs.add(since)
        return RunnerReport(
            self._name,
            processed=sum(number for ending, number in since.items() if ending not in _UNDONE),
            failed=sum(since[ending] for ending in _DEAD),
            error=self._trouble(),
            counts={str(ending): number for ending, number in since.items()},
        )

    def _trouble(self) -> str | None:
        if self._worker.not_started is not None:
            return f"handlers cannot be started: {self._worker.not_started}"
        return "too many handlers could not be stopped" if self._worker.is_stuck else None

    def stop(self) -> None:
        self._worker.stop()

    async def close(self, seconds: float) -> RunnerReport | None:
        if not self._is_started:
            return None
        await self._worker.close(seconds)
        report = self._report()
        if self._worker.unwritten:
            report.error = f"the outcomes of {self._worker.unwritten} jobs could not be written"
        writing = asyncio.create_task(self._runs.write(at_once=True))
        await asyncio.wait([writing], timeout=_LAST_RUN_SECONDS)
        await cancel_within(_LAST_RUN_SECONDS, writing)
        return report
