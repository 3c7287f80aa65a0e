"""One process: its workers and runners, which run in the background until stopped, or for a single tick."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction

from holdfast.domain.budget import Budget
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.runner import Runner, RunnerReport
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.rabbitmq.subscriber import Subscriber
from holdfast.runtime.background import Background, OnTick, close_all
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QUEUE, QueueRunner
from holdfast.runtime.tick import TickLimits, TickReport, run_tick
from holdfast.wake.postgres import Listener
from holdfast.worker.forks import end_forks_in_loop
from holdfast.worker.lifespan import Lifespan
from holdfast.worker.loop import cancel_within
from holdfast.worker.worker import Worker

log = get_logger("holdfast.process")

Check = Callable[[], Awaitable[None]]

_SOURCES_SECONDS = 1.0
_OVERTIME_SECONDS = 2.0
_CANCELED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    limits: TickLimits = field(default_factory=TickLimits)
    pacing: Pacing = field(default_factory=Pacing)
    tick_max: timedelta = timedelta(minutes=8)
    shutdown: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if self.limits.runner is not None and self.limits.runner > self.tick_max:
            raise InvalidInput("runner_max: longer than tick_max, the limit of the whole tick")


class Process:
    """Either `await run()` until `stop()`, or `await tick()`; only one of them, and only once.

    `worker` serves the queue and `row_workers` the application's own tables. Each has its own slots and lease keeper.
    """

    def __init__(
        self,
        worker: Worker,
        runners: Sequence[Runner],
        settings: ProcessSettings,
        signals: Signals,
        *,
        row_workers: Sequence[Worker] = (),
        checks: Sequence[Check] = (),
        listener: Listener | None = None,
        subscriber: Subscriber | None = None,
        lifespan: Lifespan | None = None,
    ) -> None:
        """`signals` are shared with the workers and runners.

        `checks` run once before anything starts. An error in one ends the process, unless the store is unavailable.
        """
        self.worker = worker
        self.subscriber = subscriber
        self._workers = (worker, *row_workers)
        self._settings = settings
        self._runners = list(runners)
        self._signals = signals
        self._checks = checks
        self._lifespan = lifespan or Lifespan()
        self._sources = [source for source in (listener, subscriber) if source is not None]
        shutdown = settings.shutdown.total_seconds()
        self._background = Background(self._runners, settings.limits, settings.pacing, shutdown, signals)
        self._budget = Budget()
        self._has_begun = False

    @property
    def tally(self) -> Counter[str]:
        """The number of attempts by how they ended."""
        return sum((worker.tally for worker in self._workers), Counter())

    @property
    def is_keeping(self) -> bool:
        """Whether every thread that renews leases is alive."""
        return all(worker.is_keeping for worker in self._workers)

    @property
    def is_stuck(self) -> bool:
        """Whether too many handlers could not be stopped, or none of an isolation could be started for too long."""
        return any(worker.is_stuck for worker in self._workers)

    @property
    def not_started(self) -> str | None:
        """Why handlers of some kind cannot be started, if that is so."""
        return next((why for worker in self._workers if (why := worker.not_started) is not None), None)

    @property
    def queues(self) -> list[str]:
        """The queues that this process serves."""
        return sorted({queue for worker in self._workers for queue in worker.queues})

    @property
    def runner_names(self) -> list[str]:
        return [runner.name for runner in self._runners]

    @property
    def is_stopping(self) -> bool:
        return self._background.is_stopping

    def stop(self) -> None:
        """Start nothing new, let running work finish and give the rest back. Then `run` or `tick` returns."""
        self._budget.end()
        self._background.stop()
        for source in self._sources:
            source.stop()

    def hurry(self) -> None:
        """After `stop`: do not wait for running work, interrupt it. Outcomes are still written, for up to 2 s."""
        self._signals.hurry.set()

    def wake(self, queue: str | None = None) -> None:  # noqa: ARG002
        """Hint that there may be work. The queue does not matter."""
        self._signals.wake(QUEUE)

    async def run(self, on_tick: OnTick | None = None) -> int:
        """Run in the background until stopped. Returns 0, or 1 if too many handlers could not be stopped, or none
        could be started for too long.

        `on_tick` is called on this event loop after each tick in which a runner did something or failed.
        """
        if iscoroutinefunction(on_tick):
            raise InvalidInput("on_tick: give a plain function; ticks do not wait for an async one")
        await self._begin()
        if not await self._lifespan.enter(self._signals.stop, self._stop_without_lifespan):
            return 0
        try:
            return await self._run(on_tick)
        finally:
            await self._lifespan.leave()

    def _stop_without_lifespan(self) -> None:
        log.error("the app's lifespan ended while handlers may run; stopping")
        self.stop()

    async def _run(self, on_tick: OnTick | None) -> int:
        for runner in self._runners:
            if isinstance(runner, QueueRunner):
                runner.expect()
        tasks = [asyncio.create_task(source.run()) for source in self._sources]
        try:
            await self._background.run(on_tick)
        finally:
            self.stop()
            if tasks:
                await asyncio.wait(tasks, timeout=_SOURCES_SECONDS)
            await cancel_within(_CANCELED_SECONDS, *tasks)
        return int(self.is_stuck)

    async def tick(self) -> TickReport:
        """Run each runner once, in order, until it is done or its budget is spent; then end everything and report."""
        await self._begin()
        if not await self._lifespan.enter(self._signals.stop, self._stop_without_lifespan):
            return TickReport()
        try:
            return await self._tick()
        finally:
            await self._lifespan.leave()

    async def _tick(self) -> TickReport:
        started = time.monotonic()
        self._budget = Budget(self._settings.tick_max.total_seconds(), self._settings.limits.items)
        if self.is_stopping:
            self._budget.end()
        report = TickReport()
        tick = asyncio.create_task(
            run_tick(self._runners, self._settings.limits, self._budget, to_end=True, report=report)
        )
        try:
            if not await self._ended(tick):
                for unended in self._runners[len(report.runners) :][:1]:
                    report.runners.append(RunnerReport(unended.name, error="it did not end in time"))
        except asyncio.CancelledError:
            tick.cancel()
            await close_all(self._runners, 0.0)
            raise
        for part in report.runners:
            if part.failure is not None:
                log.error("runner failed", runner=part.runner, error=part.error, exc_info=part.failure)
        for later in await close_all(self._runners, self._seconds_to_close()):
            report.add(later)
        report.seconds = time.monotonic() - started
        return report

    async def _begin(self) -> None:
        if self._has_begun:
            # The runners are closed after the first run: they would claim jobs that nothing starts.
            raise InvalidInput("this process has already run; create another with app.worker()")
        self._has_begun = True
        end_forks_in_loop()
        for check in self._checks:
            try:
                await check()
            except StoreUnavailable as error:
                # The runners try again, as they do whenever the store is unavailable.
                log.warning("store unavailable, starting without checking the tables", error=str(error))
                return

    async def _ended(self, tick: "asyncio.Task[TickReport]") -> bool:
        """Wait for the tick. A stop ends the budget, which runners notice; after the shutdown time, it is canceled."""
        stop = asyncio.create_task(self._signals.stop.wait())
        try:
            # Runners respect the budget, but one that waits for a hanging store cannot.
            limit = self._budget.seconds_left + _OVERTIME_SECONDS
            await asyncio.wait([tick, stop], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not tick.done() and self.is_stopping:
                self.stop()
                shutdown = self._settings.shutdown.total_seconds()
                await self._signals.unless_hurried(asyncio.wait([tick]), shutdown)
            if tick.done():
                await tick
                return True
            await cancel_within(_CANCELED_SECONDS, tick)
            return False
        finally:
            stop.cancel()

    def _seconds_to_close(self) -> float:
        shutdown = self._settings.shutdown.total_seconds()
        return shutdown if self.is_stopping else self._budget.seconds_left
