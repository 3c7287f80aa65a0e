"""What waits do on their own: they look, register and remove, as often as is needed and no more."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast import StoreUnavailable
from holdfast.store.memory import MemoryStore
from holdfast.store.memory_waiters import MemoryWaiters
from holdfast.waiters.board import Pacing
from holdfast.waiters.waits import Waits
from tests.databases import no_task_left
from tests.store_contract.steps import job
from tests.worker.harness import until


class Unremovable(MemoryWaiters):
    """Rows are written, and cannot be removed for as long as `is_away`."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.is_away = True
        self.written = self.refused = self.removed = 0

    async def register(self, holder: UUID, waits: Mapping[UUID, timedelta]) -> None:
        self.written += len(waits)

    async def remove(self, holder: UUID, ids: Collection[UUID]) -> None:
        if self.is_away:
            self.refused += 1
            raise StoreUnavailable("PostgreSQL is not available")
        self.removed += len(ids)


async def test_a_row_that_cannot_be_removed_is_tried_again_at_times_and_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0
    step = Waits._step

    async def count(self: Waits) -> float:
        nonlocal steps
        steps += 1
        return await step(self)

    monkeypatch.setattr(Waits, "_step", count)
    memory = MemoryStore()
    await memory.enqueue([new := job()])
    store = Unremovable(memory)
    async with no_task_left():
        waits = Waits(store, lambda _, heard: store.rings(heard), Pacing(soon=(), poll=0.05, sweep=0.05, linger=0.0))
        waiting = asyncio.create_task(waits.wait([new.id], "1h"))
        await until(lambda: store.written == 1, "registered")
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: store.refused >= 1, "the linger is over")
        steps = 0
        await until(lambda: store.refused >= 5, "tried again")
        assert steps <= 10
        store.is_away = False
        await until(lambda: store.removed == 1, "removed at last")
        await until(lambda: waits._task is None, "nothing is left to do")
        await waits.close()
