"""One bounded pass over the runners, in order. Everything that Holdfast does on its own happens in a tick."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.domain.budget import Budget
from holdfast.domain.errors import ConnectionLost, HoldfastError, InvalidInput, unforeseen
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.runner import Runner, RunnerReport


@dataclass(frozen=True, slots=True)
class TickLimits:
    """What a tick, and one runner in it, may use. None means no separate limit."""

    items: int | None = None
    runner: timedelta | None = None
    runner_items: int | None = None

    def __post_init__(self) -> None:
        if self.runner_items is not None and self.runner_items < 1:
            raise InvalidInput(f"runner_items: {self.runner_items} would not let runners do anything; give 1 or more")


@dataclass(slots=True)
class TickReport:
    runners: list[RunnerReport] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_fine(self) -> bool:
        return all(report.is_fine for report in self.runners)

    @property
    def is_complete(self) -> bool:
        """Whether every runner had its turn. False if time or items ran out, or if a signal ended the tick early."""
        return bool(self.runners) and not any(report.is_left_out for report in self.runners)

    @property
    def is_idle(self) -> bool:
        """Whether no runner did anything and none had an error."""
        return all(report.is_idle for report in self.runners)

    def add(self, later: RunnerReport) -> None:
        """Merge a report that a runner made after its turn."""
        for report in self.runners:
            if report.runner == later.runner:
                report.add(later)
                return
        self.runners.append(later)


async def run_tick(
    runners: Sequence[Runner], limits: TickLimits, whole: Budget, *, to_end: bool, report: TickReport | None = None
) -> TickReport:
    """Run one tick. With `to_end`, each runner continues until it has nothing more to do or its budget is spent.

    A given `report` is filled in as runners end, so that it is useful even if the tick itself does not end.
    """
    started = time.monotonic()
    seconds = None if limits.runner is None else limits.runner.total_seconds()
    report = TickReport() if report is None else report
    for runner in runners:
        if whole.is_spent:
            left_out = RunnerReport(runner.name, skipped="the tick's budget is spent", is_left_out=True)
            report.runners.append(left_out)
            continue
        report.runners.append(await _run(runner, whole.inner(seconds, limits.runner_items), to_end=to_end))
    report.seconds = time.monotonic() - started
    return report


async def _run(runner: Runner, budget: Budget, *, to_end: bool) -> RunnerReport:
    started = time.monotonic()
    try:
        report = await runner.run(budget, to_end=to_end)
    except HoldfastError as error:
        is_cut = isinstance(error, ConnectionLost)
        report = RunnerReport(runner.name, error=str(error), is_outage=True, is_cut=is_cut, failure=unforeseen(error))
    except (Exception, asyncio.CancelledError) as error:
        if is_being_canceled():
            raise
        said = f"{type(error).__name__}: {error}"
        report = RunnerReport(runner.name, error=said, is_outage=True, failure=error)
    report.seconds = time.monotonic() - started
    return report
