"""What a store promises about maintenance; `contract.py` has the verbs for jobs.

Each verb works in batches and yields after each one, so the caller can stop in between. Any number of processes may
call the verbs at the same time.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did, by name (`jobs_pruned`). `skipped` says what was left undone and why.

    `is_busy`: another process is doing the same work, so this one left it alone. `is_refused`: the database refused to
    do it, and will until a person changes something. Everything else was done all the same.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: str | None = None
    is_busy: bool = False
    is_refused: bool = False


class MaintenanceStore(Protocol):
    """No verb touches a ready or running job, and none makes a count wrong."""

    async def since_done(self) -> Mapping[str, timedelta]:
        """Return how long ago any process marked each chore as done, by the store's clock. Cheap."""

    async def mark_done(self, chore: str, trouble: str | None = None) -> None:
        """`trouble`: what the database refused, and why."""

    async def mark_failed(self, chore: str, error: str) -> None:
        """Record the error as the chore's trouble. When it was last done does not change."""

    async def troubles(self) -> Mapping[str, str]:
        """Return the trouble of each chore whose latest pass had any. Cheap."""
        ...

    def add_partitions(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Make room for the jobs of the coming days, which will be kept for the retention."""

    def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Remove jobs that succeeded or were canceled before the retention, with their keys, errors and progress.

        A store may keep them longer, by at most an eighth of the retention plus two days. A key with a window is
        removed when its window is over, and not before.
        """

    async def overdue_days(self, retention: timedelta) -> Sequence[date]:
        """Return the first days of partitions that retention should have removed by now, oldest first. Cheap."""
        ...

    def prune_dead_letters(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Remove dead letters older than the retention."""

    def prune_runs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Remove runs that ended before the retention, or that started before it and never ended."""

    def compact_counts(self) -> AsyncGenerator[Batch, None]:
        """Compact the ledger, so that counting stays cheap."""
