"""What a store promises about its maintenance; `contract.py` has the verbs of jobs.

Each verb works in batches and yields after each, so that the caller can stop between two. Any number of processes may
call them at once.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did, by name (`jobs_pruned`); `skipped` says what was left undone and why.

    `is_busy`: it was left to another process that is at the same.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    skipped: str | None = None
    is_busy: bool = False


class MaintenanceStore(Protocol):
    """No verb touches a job that is ready or running, and none makes a count wrong."""

    async def since_done(self) -> Mapping[str, timedelta]:
        """How long ago each chore was marked done, by any process and by the store's clock. Cheap."""

    async def mark_done(self, chore: str) -> None: ...

    def add_partitions(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Make room for the jobs of the coming days, to be kept for the retention."""

    def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Remove jobs that succeeded or were canceled longer ago than the retention, with keys, errors and progress.

        A store may keep them longer, by an eighth of the retention and two days at most. A key with a window goes when
        that is over, and not before.
        """

    async def overdue_days(self, retention: timedelta) -> Sequence[date]:
        """The days on which partitions begin that retention should have removed by now, the oldest first. Cheap."""
        ...

    def prune_dead_letters(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Remove dead letters that are older than the retention."""

    def prune_runs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        """Remove runs that ended longer ago than the retention, or began so long ago and never ended."""

    def compact_counts(self) -> AsyncGenerator[Batch, None]:
        """Keep counting cheap."""
