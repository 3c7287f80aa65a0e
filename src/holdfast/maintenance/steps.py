"""The steps of maintenance, each apart from the others: one that fails is reported, and the next one is done.

`store/upkeep.py` has the verbs; `runtime/maintenance.py` says when they run.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.errors import HoldfastError
from holdfast.log import get_logger
from holdfast.store.upkeep import Batch, Upkeep

log = get_logger("holdfast.maintenance")


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


@dataclass(slots=True)
class StepReport:
    """`skipped` and `error` begin with the step's name."""

    counts: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)
    error: str | None = None


def all_steps(upkeep: Upkeep, retention: Retention) -> Sequence[Step]:
    dead_letters = retention.dead_letters
    return [
        Step("partitions", upkeep.add_partitions),
        Step("prune jobs", lambda: upkeep.prune_jobs(retention.jobs)),
        *([Step("prune dead letters", lambda: upkeep.prune_dead_letters(dead_letters))] if dead_letters else []),
        Step("prune runs", lambda: upkeep.prune_runs(retention.runs)),
        Step("compact counts", upkeep.compact_counts),
    ]


async def run_step(step: Step, is_spent: Callable[[], bool]) -> StepReport:
    """Batch after batch until there is nothing left to do or the time is up; an error ends it."""
    report = StepReport()
    if is_spent():
        report.skipped.append(f"{step.name}: the time is up")
        return report
    try:
        async with aclosing(step.batches()) as batches:
            async for batch in batches:
                report.counts.update(batch.counts)
                if batch.skipped is not None:
                    report.skipped.append(f"{step.name}: {batch.skipped}")
                if is_spent():
                    report.skipped.append(f"{step.name}: the time is up")
                    break
    except HoldfastError as error:
        report.error = f"{step.name}: {error}"
        log.warning("a step of maintenance failed", step=step.name, error=str(error))
    except Exception as error:
        # Whatever it is, the other steps must be done.
        report.error = f"{step.name}: {type(error).__name__}: {error}"
        log.exception("a step of maintenance failed", step=step.name)
    return report
