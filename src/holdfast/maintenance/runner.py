"""The runner that maintains a store. What it does, and how often, is in `maintenance/chores.py`."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from holdfast.domain.budget import Budget
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.runner import RunnerReport
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.maintenance.chores import Chore, ChoreReport, Retention, all_chores, run_chore
from holdfast.store.maintenance import MaintenanceStore
from holdfast.worker.loop import cancel_within

log = get_logger("holdfast.maintenance")

MAINTENANCE = "maintenance"
AGAIN_SECONDS = 60.0
SPREAD_SECONDS = 60.0

_CANCELED_SECONDS = 1.0


class Maintenance:
    """The first pass is due at a random time within a minute, so that replicas that start together do not collide.

    A pass does the chores that no process has done lately. A tick that runs to its end makes its pass immediately,
    within the tick's time. In the background, a pass runs alongside the ticks until nothing is left to do.
    """

    def __init__(self, store: MaintenanceStore, retention: Retention, signals: Signals | None = None) -> None:
        self._store = store
        self._signals = signals or Signals()
        self._chores = all_chores(store, retention)
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
            self._pass = asyncio.create_task(self._run_due(budget if to_end else Budget()), name=MAINTENANCE)
            self._pass.add_done_callback(lambda _: self._signals.changed.set())
        if self._pass is None or not (to_end or self._pass.done()):
            return RunnerReport(self.name)
        try:
            return await self._pass
        finally:
            self._pass = None

    async def _run_due(self, budget: Budget) -> RunnerReport:
        """Run the chores that no process has done lately."""
        started = time.monotonic()
        self._has_run = True
        self._next = started + AGAIN_SECONDS
        try:
            ago = await self._store.since_done()
        except StoreUnavailable as error:
            return RunnerReport(self.name, error=str(error), is_outage=True)
        due = [chore for chore in self._chores if ago.get(chore.name, chore.every) >= chore.every]
        report, all_done = await self._run_chores(due, budget)
        if all_done:
            soonest = min(chore.every - (timedelta(0) if chore in due else ago[chore.name]) for chore in self._chores)
            # The first process to get there does the chores; the others find them done.
            spread = random.uniform(0.0, SPREAD_SECONDS)  # noqa: S311
            self._next = time.monotonic() + soonest.total_seconds() + spread
        report.seconds = time.monotonic() - started
        return report

    async def _run_chores(self, due: Sequence[Chore], budget: Budget) -> tuple[RunnerReport, bool]:
        """Run these chores. Returns the report, and whether all of them were completed."""
        counts: Counter[str] = Counter()
        reports: list[ChoreReport] = []
        is_outage = False
        for number, chore in enumerate(due):
            # Each chore gets an equal share of the time that is left, so that one with hours of work starves no other.
            # Only the budget's time counts: items limit jobs, and maintenance must not fall behind because of them.
            share = budget.inner(budget.seconds_left / (len(due) - number), None)
            done = await run_chore(self._store, chore, partial(self._is_spent, share))
            counts.update(done.counts)
            reports.append(done)
            if done.is_outage:
                is_outage = not await self._answers()
                if is_outage:
                    break
                log.warning("a chore failed", chore=chore.name, error=done.error)
        skipped = [reason for done in reports for reason in done.skipped]
        errors = [done.error for done in reports if done.error is not None]
        report = RunnerReport(
            self.name,
            processed=counts.total(),
            skipped="; ".join(dict.fromkeys(skipped)) or None,
            error="; ".join(errors) or None,
            counts={name: number for name, number in counts.items() if number},
            is_outage=is_outage,
        )
        return report, not errors and all(done.is_done for done in reports)

    def _is_spent(self, share: Budget) -> bool:
        return self._is_stopping or share.seconds_left == 0

    async def _answers(self) -> bool:
        """Whether the store answers. If not, every other chore would fail too; if so, one statement was too slow."""
        try:
            await self._store.since_done()
        except StoreUnavailable:
            return False
        return True

    def wake(self) -> None:
        self._next = time.monotonic()

    def stop(self) -> None:
        self._is_stopping = True

    async def close(self, seconds: float) -> RunnerReport | None:
        """End the current pass. Each batch is a transaction, so a canceled pass keeps what it has done."""
        if self._pass is None:
            return None
        going, self._pass = self._pass, None
        await asyncio.wait([going], timeout=seconds)
        if going.done():
            return going.result()
        await cancel_within(_CANCELED_SECONDS, going)
        return RunnerReport(self.name, skipped="it was stopped")
