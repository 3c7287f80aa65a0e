"""A queue as a runner: fills the worker's free slots and rescues expired leases."""

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
from holdfast.log import get_logger
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.wake import Told
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
    """What most have to do before they start."""


class Sleeper(Protocol):
    """What can be told of new work while it waits with free slots, such as a listener on PostgreSQL."""

    def looks(self) -> None:
        """Said before each claim. One of the others below follows, and says what became of it."""

    def asleep(self, *, is_short: bool = False) -> Told | None:
        """Said before a wait for work. For how long we have been told of new work; None: for once we are not.

        `is_short`: of a kind we can take no more, so others are to hear of what we were told.
        """

    def awake(self, *, is_full: bool) -> None:
        """Said instead of waiting. `is_full`: all slots are taken, so others are to hear of what we were told;
        otherwise the next claim follows at once."""


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
        """`before_start` is done before the first claim. If it fails, the runner does, and tries again with its next
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
        """The next look, if nobody wakes us before, is at a time at which nothing is known to be due."""
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

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        if not self._is_started:
            reach("declare.before")
            await self._before_start()
            reach("declare.after")
            self._is_started = True
            self._worker.start()
        if to_end:
            await self._work_to_end(budget)
        else:
            # A turn may also be for the rescue alone.
            if self._is_turn_due:
                await self._work_once(budget)
            # Afterwards: whoever was just woken for a new job must not wait while the leases are read.
            await self._rescue()
        report = self._report()
        await self._runs.write()
        return report

    @property
    def _is_turn_due(self) -> bool:
        return self._worker.may_claim or self._turn_at <= time.monotonic()

    async def _work_once(self, budget: Budget) -> None:
        """One claim, so that other runners have their turn before the next one."""
        looks_first = self._is_poll and self._turn_at != _NOW and not self._worker.may_claim
        # Set before the claim and not after it: a wake-up meanwhile must not be forgotten.
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
        """Until nothing is due and nothing runs, or the budget is spent."""
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
        """One round: if there is more to rescue, the next turn does it, after its claim."""
        if time.monotonic() >= self._rescue_at:
            try:
                rescue = await self._worker.rescue()
            except (StoreUnavailable, SchemaMismatch):
                raise
            except Exception as error:  # noqa: BLE001 - logged below
                # Jobs that can be claimed must not wait for those that cannot be rescued.
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
                # A claim that found something did not look, so it does not know what is due later: the next turn does.
                idle = self._pacing.idle(self._empty_turns, self._random, told=None if turn.claimed else told)
            if self._sleeper is not None and told is None and not is_busy:
                # Producers do not ring: jobs come so fast that nobody is told of each, or in a moment they will know.
                # Where neither is so, the waits soon are the usual ones.
                soonest = self._pacing.idle_min.total_seconds() * _UNTOLD
                idle = min(idle, soonest * 2.0 ** min(self._empty_turns - 1, 30))
            # After shorter waits there may well be something: who works off a trickle claims without asking first.
            self._is_poll = self._pacing.idle_max.total_seconds() <= idle < wait
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
            # So it is in most turns.
            return RunnerReport(self._name)
        since = Counter(tally) - Counter(self._reported)
        self._reported = tally
        self._runs.add(since)
        return RunnerReport(
            self._name,
            processed=sum(number for ending, number in since.items() if ending not in _UNDONE),
            failed=sum(since[ending] for ending in _DEAD),
            error="too many handlers could not be stopped" if self._worker.is_stuck else None,
            counts={str(ending): number for ending, number in since.items()},
        )

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
