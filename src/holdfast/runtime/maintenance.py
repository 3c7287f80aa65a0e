"""The runner that keeps a store in shape, every ten minutes; what it does is in `maintenance/steps.py`."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable

from holdfast.maintenance.steps import Retention, all_steps, run_step
from holdfast.runtime.budget import Budget
from holdfast.runtime.runner import RunnerReport
from holdfast.store.upkeep import Upkeep

EVERY_SECONDS = 600.0
AGAIN_SECONDS = 60.0
SPREAD_SECONDS = 60.0

_LAST_BATCH_SECONDS = 5.0


class Maintenance:
    """First due within a minute of its start, at random: replicas that start together do not all come at once.

    A tick that is run to its end has no later: there it is done at once.
    """

    name = "maintenance"

    def __init__(self, upkeep: Upkeep, retention: Retention) -> None:
        self.on_wake: Callable[[], None] = lambda: None
        self._steps = all_steps(upkeep, retention)
        self._next = time.monotonic() + random.uniform(0.0, SPREAD_SECONDS)  # noqa: S311
        self._has_run = False
        self._is_stopping = False
        self._task: asyncio.Task[RunnerReport] | None = None

    def due_in(self) -> float | None:
        if self._task is not None:
            return 0.0 if self._task.done() else None
        return max(0.0, self._next - time.monotonic())

    def wake(self) -> None:
        """Nobody can know better when it is due."""

    def stop(self) -> None:
        self._is_stopping = True

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        if to_end:
            is_due = not self._has_run or self.due_in() == 0
            return await self._keep_up(budget) if is_due else RunnerReport(self.name)
        # Beside the coming ticks: a large day takes its time, and jobs must not wait for it.
        if self._task is None and self.due_in() == 0 and not self._is_stopping:
            self._task = asyncio.create_task(self._keep_up(Budget()))
            self._task.add_done_callback(lambda _: self.on_wake())
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            return task.result()
        return RunnerReport(self.name)

    async def _keep_up(self, budget: Budget) -> RunnerReport:
        started = time.monotonic()
        self._has_run = True
        self._next = started + EVERY_SECONDS
        report = RunnerReport(self.name)
        counts: Counter[str] = Counter()
        skipped: list[str] = []
        errors: list[str] = []
        for step in self._steps:
            # Of a budget only its time counts: items are a limit for work, and upkeep must not fall behind for it.
            done = await run_step(step, lambda: self._is_stopping or budget.seconds_left == 0)
            counts.update(done.counts)
            skipped += done.skipped
            if done.error is not None:
                errors.append(done.error)
        report.counts.update(+counts)
        report.processed = counts.total()
        report.skipped = "; ".join(dict.fromkeys(skipped)) or None
        report.error = "; ".join(errors) or None
        if errors:
            self._next = started + AGAIN_SECONDS
        return report

    async def close(self, seconds: float) -> RunnerReport | None:
        """Its batches are short; one that hangs is left to the end of its connection."""
        self.stop()
        task, self._task = self._task, None
        if task is None:
            return None
        await asyncio.wait([task], timeout=min(seconds, _LAST_BATCH_SECONDS))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None if task.cancelled() or task.exception() is not None else task.result()
