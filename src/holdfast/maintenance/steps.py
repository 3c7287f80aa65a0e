"""The steps of maintenance, each apart from the others: one that fails is reported, and the next one is done.

`store/maintenance.py` has the verbs; `maintenance/runner.py` says when they run.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.log import get_logger
from holdfast.store.maintenance import Batch, Upkeep

log = get_logger("holdfast.maintenance")

_EVERY = timedelta(minutes=10)
# They are made for days to come.
_PARTITIONS_EVERY = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept; None: for ever."""

    jobs: timedelta
    dead_letters: timedelta | None
    runs: timedelta


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    batches: Callable[[], AsyncGenerator[Batch, None]]
    every: timedelta = _EVERY


@dataclass(slots=True)
class StepReport:
    """`skipped` and `error` begin with the step's name; `is_done` unless something is left for the next time."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    error: str | None = None
    is_outage: bool = False
    is_done: bool = True


def all_steps(upkeep: Upkeep, retention: Retention) -> Sequence[Step]:
    dead_letters = retention.dead_letters
    return [
        Step("partitions", upkeep.add_partitions, _PARTITIONS_EVERY),
        Step("prune jobs", lambda: upkeep.prune_jobs(retention.jobs)),
        *([Step("prune dead letters", lambda: upkeep.prune_dead_letters(dead_letters))] if dead_letters else []),
        Step("prune runs", lambda: upkeep.prune_runs(retention.runs)),
        Step("compact counts", upkeep.compact_counts),
    ]


async def run_step(upkeep: Upkeep, step: Step, is_spent: Callable[[], bool]) -> StepReport:
    """Batch after batch until there is nothing left to do or the time is up; an error ends it."""
    report = StepReport()
    try:
        await _run_batches(step, is_spent, report)
        if report.is_done:
            await upkeep.mark_done(step.name)
    except StoreUnavailable as error:
        # The caller tells it: it may be no misfortune of this step alone.
        report.error, report.is_outage = f"{step.name}: {error}", True
    except HoldfastError as error:
        report.error = f"{step.name}: {error}"
        log.warning("a step of maintenance failed", step=step.name, error=str(error))
    except Exception as error:
        # Whatever it is, the other steps must be done.
        report.error = f"{step.name}: {type(error).__name__}: {error}"
        log.exception("a step of maintenance failed", step=step.name)
    return report


async def _run_batches(step: Step, is_spent: Callable[[], bool], report: StepReport) -> None:
    async with aclosing(step.batches()) as batches:
        while not is_spent():
            batch = await anext(batches, None)
            if batch is None:
                return
            report.counts.update(batch.counts)
            if batch.skipped is not None:
                report.skipped.append(f"{step.name}: {batch.skipped}")
            report.is_done &= not batch.is_busy
    report.skipped.append(f"{step.name}: the time is up")
    report.is_done = False
