"""The chores of maintenance. They are independent: if one fails, it is reported and the next one runs.

`store/maintenance.py` has the operations; `maintenance/runner.py` decides when they run.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.logs.records import get_logger
from holdfast.store.maintenance import Batch, MaintenanceStore

log = get_logger("holdfast.maintenance")

_EVERY = timedelta(minutes=10)
# Less often, because partitions are created days in advance.
_PARTITIONS_EVERY = timedelta(hours=1)
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept; None means forever."""

    jobs: timedelta
    dead_letters: timedelta | None
    runs: timedelta


@dataclass(frozen=True, slots=True)
class Chore:
    name: str
    batches: Callable[[], AsyncGenerator[Batch, None]]
    every: timedelta = _EVERY


@dataclass(slots=True)
class ChoreReport:
    """`skipped` and `error` begin with the chore's name. `is_done` is False if something is left for the next time.
    `refused` is the part of what was skipped that the database refused."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    error: str | None = None
    is_outage: bool = False
    is_done: bool = True


def all_chores(store: MaintenanceStore, retention: Retention) -> Sequence[Chore]:
    dead_letters = retention.dead_letters
    return [
        Chore("partitions", lambda: store.add_partitions(retention.jobs), _PARTITIONS_EVERY),
        Chore("prune jobs", lambda: store.prune_jobs(retention.jobs)),
        *([Chore("prune dead letters", lambda: store.prune_dead_letters(dead_letters))] if dead_letters else []),
        Chore("prune runs", lambda: store.prune_runs(retention.runs)),
        Chore("compact counts", store.compact_counts),
    ]


async def run_chore(store: MaintenanceStore, chore: Chore, is_spent: Callable[[], bool]) -> ChoreReport:
    """Run batch after batch until nothing is left to do, the time is up or an error occurs."""
    report = ChoreReport()
    try:
        await _run_batches(chore, is_spent, report)
        if report.is_done:
            await store.mark_done(chore.name, _trouble(report.refused))
        elif report.refused:
            await store.mark_failed(chore.name, _trouble(report.refused) or "")
    except StoreUnavailable as error:
        # The caller logs it, because other chores may fail for the same reason.
        report.error, report.is_outage = f"{chore.name}: {error}", True
    except HoldfastError as error:
        await _report_failure(store, chore, report, str(error))
        log.warning("a chore failed", chore=chore.name, error=str(error))
    except Exception as error:
        # Any error at all: the other chores must still run.
        await _report_failure(store, chore, report, f"{type(error).__name__}: {error}")
        log.exception("a chore failed", chore=chore.name)
    for refused in report.refused:
        log.warning("the database refused a part of a chore", chore=chore.name, error=refused)
    return report


def _trouble(refused: Sequence[str]) -> str | None:
    """What doctor and the health port show."""
    if not refused:
        return None
    more = len(refused) - _SHOWN
    return "; ".join(refused[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


async def _report_failure(store: MaintenanceStore, chore: Chore, report: ChoreReport, error: str) -> None:
    report.error = f"{chore.name}: {error}"
    with suppress(HoldfastError):
        await store.mark_failed(chore.name, error)


async def _run_batches(chore: Chore, is_spent: Callable[[], bool], report: ChoreReport) -> None:
    async with aclosing(chore.batches()) as batches:
        while not is_spent():
            batch = await anext(batches, None)
            if batch is None:
                return
            report.counts.update(batch.counts)
            if batch.skipped is not None:
                report.skipped.append(f"{chore.name}: {batch.skipped}")
                if batch.is_refused and batch.skipped not in report.refused:
                    report.refused.append(batch.skipped)
            report.is_done &= not batch.is_busy
    report.skipped.append(f"{chore.name}: the time is up")
    report.is_done = False
