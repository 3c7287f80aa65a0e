"""The background work of waits: they look, register and remove no more often than necessary."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast import Job, JobState, StoreUnavailable, UnknownJob
from holdfast.store.memory.store import MemoryStore
from holdfast.store.memory.waiters import MemoryWaiters
from holdfast.waits.waits import Waits
from holdfast.waits.watch import Pacing
from tests.databases import no_task_left
from tests.store_contract.steps import job
from tests.worker.harness import PATIENCE, until


class Unremovable(MemoryWaiters):
    """Rows can be written, but not removed while `is_away`."""

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


async def test_removing_a_row_is_retried_at_intervals_and_not_in_a_busy_loop(
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
        await until(lambda: store.refused >= 5, "retried")
        assert steps <= 10
        store.is_away = False
        await until(lambda: store.removed == 1, "removed")
        await until(lambda: waits._task is None, "nothing is left to do")
        await waits.close()


class Slow(MemoryWaiters):
    """Reads at once, but answers only when `may_answer` is set."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.may_answer = asyncio.Event()
        self.has_read = asyncio.Event()

    async def read(self, ids: Collection[UUID]) -> list[Job]:
        found = await super().read(ids)
        self.has_read.set()
        await self.may_answer.wait()
        return found


Waiting = asyncio.Task[dict[UUID, Job]]


@asynccontextmanager
async def slow_look(memory: MemoryStore, id: UUID) -> AsyncIterator[tuple[Waits, Waiting, Slow]]:
    """A wait for the job whose look has read the store but does not answer until the block sets `may_answer`."""
    store = Slow(memory)
    async with no_task_left(), asyncio.timeout(PATIENCE):
        waits = Waits(store, lambda _, heard: store.rings(heard), Pacing(linger=0.0))
        early = asyncio.create_task(waits.wait([id], "0s"))
        await store.has_read.wait()
        yield waits, early, store
        await waits.close()


async def test_a_look_from_before_the_enqueue_does_not_end_a_later_wait_as_unknown() -> None:
    memory, new = MemoryStore(), job()
    async with slow_look(memory, new.id) as (waits, early, store):
        await memory.enqueue([new])
        late = asyncio.create_task(waits.wait([new.id], "0s"))
        await asyncio.sleep(0)
        store.may_answer.set()
        with pytest.raises(UnknownJob):
            await early
        assert (await late)[new.id].state is JobState.READY


async def test_a_look_from_before_a_wait_does_not_end_it_with_an_outdated_state() -> None:
    memory, new = MemoryStore(), job()
    await memory.enqueue([new])
    await memory.cancel([new.id])
    async with slow_look(memory, new.id) as (waits, early, store):
        await memory.retry([new.id])
        late = asyncio.create_task(waits.wait([new.id], "0s"))
        await asyncio.sleep(0)
        store.may_answer.set()
        assert (await early)[new.id].state is JobState.CANCELED
        assert (await late)[new.id].state is JobState.READY
