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
from holdfast.worker.loop import cancel_within

MAINTENANCE = "maintenance"
EVERY_SECONDS = 600.0
AGAIN_SECONDS = 60.0
SPREAD_SECONDS = 60.0

_CANCELED_SECONDS = 1.0


class Maintenance:
    """First due within a minute of its start, at random: replicas that start together do not all come at once.

    A tick that is run to its end has no later: there it is done at once. In the background a pass goes on beside the
    ticks, since it may take longer than a job or a schedule should wait.
    """

    def __init__(self, upkeep: Upkeep, retention: Retention) -> None:
        self.on_wake: Callable[[], None] = lambda: None
        self._steps = all_steps(upkeep, retention)
        self._next = time.monotonic() + random.uniform(0.0, SPREAD_SECONDS)  # noqa: S311
        self._has_run = False
        self._is_stopping = False
        self._pass: asyncio.Task[RunnerReport] | None = None

    @property
    def name(self) -> str:
        return MAINTENANCE

    def due_in(self) -> float | None:
        if self._pass is not None:
            return 0.0 if self._pass.done() else None
        return max(0.0, self._next - time.monotonic())

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        if self._pass is None and not self._is_stopping and (self.due_in() == 0 or (to_end and not self._has_run)):
            self._pass = asyncio.create_task(self._run_steps(budget), name=MAINTENANCE)
            self._pass.add_done_callback(lambda _: self.on_wake())
        if self._pass is None or not (to_end or self._pass.done()):
            return RunnerReport(self.name)
        try:
            return await self._pass
        finally:
            self._pass = None

    async def _run_steps(self, budget: Budget) -> RunnerReport:
        started = time.monotonic()
        self._has_run = True
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
        self._next = started + (AGAIN_SECONDS if errors else EVERY_SECONDS)
        return RunnerReport(
            self.name,
            processed=counts.total(),
            skipped="; ".join(dict.fromkeys(skipped)) or None,
            error="; ".join(errors) or None,
            seconds=time.monotonic() - started,
            counts={name: number for name, number in counts.items() if number},
        )

    def wake(self) -> None:
        self._next = time.monotonic()

    def stop(self) -> None:
        self._is_stopping = True

    async def close(self, seconds: float) -> RunnerReport | None:
        """Every batch is a transaction: a pass that is canceled has done what it has done."""
        if self._pass is None:
            return None
        going, self._pass = self._pass, None
        await asyncio.wait([going], timeout=seconds)
        if going.done():
            return going.result()
        await cancel_within(_CANCELED_SECONDS, going)
        return RunnerReport(self.name, skipped="it was stopped")
