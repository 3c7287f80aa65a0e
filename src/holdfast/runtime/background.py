"""Repeats the tick: immediately on start, then whenever a runner is due or is woken."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from holdfast.domain.budget import Budget
from holdfast.domain.runner import Runner, RunnerReport
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.tick import TickLimits, TickReport, run_tick
from holdfast.worker.loop import cancel_within

log = get_logger("holdfast.background")

OnTick = Callable[[TickReport], object]

_LAST_TICK_SECONDS = 2.0
_SHORTEST_HOLD_SECONDS = 0.1
_CANCELED_SECONDS = 1.0


class Background:
    """Runs until `stop` is called, one tick at a time. Work that a tick started continues alongside later ticks."""

    def __init__(
        self,
        runners: Sequence[Runner],
        limits: TickLimits,
        pacing: Pacing,
        shutdown: float,
        signals: Signals | None = None,
    ) -> None:
        """`signals` are the ones that the runners set."""
        self._runners = list(runners)
        self._limits = limits
        self._pacing = pacing
        self._shutdown = shutdown
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._failures: Counter[str] = Counter()
        self._failed_at: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._signals = signals or Signals()
        self._has_failed_to_tell = False

    @property
    def is_stopping(self) -> bool:
        return self._signals.stop.is_set()

    def stop(self) -> None:
        """Start nothing new, let running work finish and give the rest back. Then `run` returns."""
        self._signals.stop.set()
        for runner in self._runners:
            runner.stop()
        self._signals.changed.set()

    def _wake_runners(self) -> None:
        """Wake the runners that have hints; a hint ends any wait."""
        woken = self._signals.take_woken()
        for runner in self._runners:
            if runner.name in woken:
                self._hold_back_less(runner.name)
                runner.wake()

    def _hold_back_less(self, name: str) -> None:
        """After a failure, a wake-up only shortens the wait: there may be thousands, and the store may be down."""
        if name in self._not_before:
            soon = self._failed_at[name] + _SHORTEST_HOLD_SECONDS
            self._not_before[name] = min(self._not_before[name], soon)

    async def run(self, on_tick: OnTick | None = None) -> None:
        """`on_tick` is called after each tick with something to report, and once more for what ended while stopping."""
        ticks = asyncio.create_task(self._repeat(on_tick))
        stop = asyncio.create_task(self._signals.stop.wait())
        try:
            await asyncio.wait([ticks, stop], return_when=asyncio.FIRST_COMPLETED)
            await self._end(ticks, self._shutdown, on_tick)
        except asyncio.CancelledError:
            # A cancellation is urgent, but running work must not be left unattended.
            await self._end(ticks, 0.0, on_tick)
            raise
        finally:
            stop.cancel()

    async def _repeat(self, on_tick: OnTick | None) -> None:
        while not self.is_stopping:
            self._signals.changed.clear()
            self._wake_runners()
            due = [runner for runner in self._runners if self._due_in(runner) <= 0]
            if due:
                report = await run_tick(due, self._limits, Budget(items=self._limits.items), to_end=False)
                for part in report.runners:
                    self._take_in(part)
                self._tell(on_tick, report)
            await self._pause(min(map(self._due_in, self._runners), default=math.inf))

    def _due_in(self, runner: Runner) -> float:
        due_in = runner.due_in()
        if due_in is None:
            return math.inf
        if runner.name not in self._not_before:
            return due_in
        return max(due_in, self._not_before[runner.name] - time.monotonic())

    def _take_in(self, report: RunnerReport) -> None:
        name = report.runner
        if report.is_outage:
            self._failures[name] += 1
            if self._failures[name] == 1:
                log.warning("runner failed, trying again", runner=name, error=report.error, exc_info=report.failure)
            self._failed_at[name] = time.monotonic()
            is_first_cut = report.is_cut and self._failures[name] == 1
            wait = 0.0 if is_first_cut else self._pacing.error(self._failures[name], self._random)
            self._not_before[name] = time.monotonic() + wait
        elif failures := self._failures.pop(name, 0):
            self._not_before.pop(name, None)
            log.warning("runner works again", runner=name, after_failures=failures)

    def _tell(self, on_tick: OnTick | None, report: TickReport) -> None:
        if on_tick is None or report.is_idle:
            return
        try:
            on_tick(report)
        except Exception as error:  # noqa: BLE001 - logged below
            self._log_failure_to_tell(error)

    def _log_failure_to_tell(self, error: Exception) -> None:
        """Log only the first error: a failing callback should neither stop us nor fill the log."""
        if not self._has_failed_to_tell:
            self._has_failed_to_tell = True
            log.error("on_tick failed; further errors are not logged", exc_info=error)

    async def _pause(self, seconds: float) -> None:
        if seconds <= 0 or self._signals.changed.is_set():
            await asyncio.sleep(0)
            return
        # Not asyncio.timeout, which is slower: a wake-up for a job should take effect quickly.
        timer = None
        if seconds < math.inf:
            timer = asyncio.get_running_loop().call_later(seconds, self._signals.changed.set)
        try:
            await self._signals.changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _end(self, ticks: "asyncio.Task[None]", grace: float, on_tick: OnTick | None) -> None:
        self.stop()
        end = time.monotonic() + grace
        # A claim in progress may still return jobs, and those must be given back too.
        await asyncio.wait([ticks], timeout=_LAST_TICK_SECONDS)
        ended = await close_all(self._runners, max(0.0, end - time.monotonic()))
        self._tell(on_tick, TickReport(ended))
        if ticks.done():
            ticks.result()
        await cancel_within(_CANCELED_SECONDS, ticks)


async def close_all(runners: Sequence[Runner], seconds: float) -> list[RunnerReport]:
    """Close all runners concurrently, so that each has the full time and none keeps another from closing properly."""
    ended = await asyncio.gather(*(runner.close(seconds) for runner in runners), return_exceptions=True)
    for runner, result in zip(runners, ended, strict=True):
        if isinstance(result, Exception):
            log.error("runner could not close properly", runner=runner.name, error=f"{type(result).__name__}: {result}")
    return [result for result in ended if isinstance(result, RunnerReport)]
