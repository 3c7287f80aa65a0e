"""Maintenance of the memory store: the simplest implementation of `store/maintenance.py`."""

from collections.abc import AsyncGenerator
from datetime import date, datetime, timedelta

from holdfast.domain.job import JobState
from holdfast.store.maintenance import Batch
from holdfast.store.memory.schedules import MemoryRuns
from holdfast.store.memory.store import MemoryStore


class MemoryMaintenance:
    def __init__(self, store: MemoryStore, runs: MemoryRuns) -> None:
        self._store = store
        self._runs = runs
        self._done: dict[str, datetime] = {}
        self._troubles: dict[str, str] = {}

    async def since_done(self) -> dict[str, timedelta]:
        now = await self._store.clock.now()
        return {chore: now - at for chore, at in self._done.items() if at <= now}

    async def mark_done(self, chore: str, trouble: str | None = None) -> None:
        self._done[chore] = await self._store.clock.now()
        self._troubles.pop(chore, None)
        if trouble is not None:
            self._troubles[chore] = trouble

    async def mark_failed(self, chore: str, error: str) -> None:
        self._troubles[chore] = error

    async def troubles(self) -> dict[str, str]:
        return dict(self._troubles)

    async def add_partitions(self, retention: timedelta) -> AsyncGenerator[Batch, None]:  # noqa: ARG002
        yield Batch()

    async def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        states = frozenset((JobState.SUCCEEDED, JobState.CANCELED))
        yield Batch({"jobs_pruned": self._store.remove_final(states, retention)})

    async def overdue_days(self, retention: timedelta) -> list[date]:  # noqa: ARG002
        return []

    async def prune_dead_letters(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        states = frozenset((JobState.FAILED, JobState.DEAD))
        yield Batch({"dead_letters_pruned": self._store.remove_final(states, retention)})

    async def prune_runs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        yield Batch({"runs_pruned": self._runs.remove_old(retention)})

    async def compact_counts(self) -> AsyncGenerator[Batch, None]:
        yield Batch()
