"""The runner that keeps a store in shape, every ten minutes; what it does is in `maintenance/steps.py`."""

import random
import time
from collections.abc import Callable

from holdfast.maintenance.steps import Retention, all_steps, run_step
from holdfast.runtime.budget import Budget
from holdfast.runtime.runner import RunnerReport
from holdfast.store.upkeep import Upkeep

EVERY_SECONDS = 600.0
AGAIN_SECONDS = 60.0
SPREAD_SECONDS = 60.0


class Maintenance:
    """First due within a minute of its start, at random: replicas that start together do not all come at once.

    A tick that is run to its end has no later: there it is done at once.
    """

    name = "maintenance"

    def __init__(self, upkeep: Upkeep, retention: Retention, on_wake: Callable[[], None] = lambda: None) -> None:
        self._steps = all_steps(upkeep, retention)
        self._next = time.monotonic() + random.uniform(0.0, SPREAD_SECONDS)  # noqa: S311
        self._has_run = False
        self.on_wake = on_wake

    def due_in(self) -> float:
        return max(0.0, self._next - time.monotonic())

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        report = RunnerReport(self.name)
        if self.due_in() > 0 and (self._has_run or not to_end):
            return report
        started = time.monotonic()
        self._has_run = True
        counts: dict[str, int] = {}
        skipped: list[str] = []
        errors: list[str] = []
        for step in self._steps:
            # Of a budget only its time counts: items are a limit for work, and upkeep must not fall behind for it.
            done = await run_step(step, lambda: budget.seconds_left == 0)
            for name, number in done.counts.items():
                counts[name] = counts.get(name, 0) + number
            skipped += done.skipped
            if done.error is not None:
                errors.append(done.error)
        report.counts.update({name: number for name, number in counts.items() if number})
        report.processed = sum(counts.values())
        report.skipped = "; ".join(dict.fromkeys(skipped)) or None
        report.error = "; ".join(errors) or None
        report.seconds = time.monotonic() - started
        self._next = started + (AGAIN_SECONDS if errors else EVERY_SECONDS)
        return report

    async def close(self, seconds: float) -> RunnerReport | None:  # noqa: ARG002
        """Nothing carries on beside the ticks."""
        return None
