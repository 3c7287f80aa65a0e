"""Waiting for jobs in memory: the store calls listeners when a job becomes final, on the thread that ends it."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta
from uuid import UUID

from holdfast.domain.job import Job
from holdfast.domain.keys import KeyName
from holdfast.store.memory.store import MemoryStore
from holdfast.store.waiters import Heard


class MemoryRings:
    def __init__(self, store: MemoryStore, heard: Heard) -> None:
        self._store = store
        self._heard = heard
        self._stopping = asyncio.Event()
        self.is_listening = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()

        def ring(id: UUID) -> None:
            loop.call_soon_threadsafe(self._heard, [id])

        with self._store.ringing(ring):
            self.is_listening = True
            self._heard(None)
            await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


class MemoryWaiters:
    """Registering does nothing, because a ring without waiters costs nothing here."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def not_live(self, ids: Collection[UUID]) -> list[UUID]:
        live = {job.id for job in await self.read(ids) if not job.state.is_final}
        return [id for id in ids if id not in live]

    async def read(self, ids: Collection[UUID]) -> list[Job]:
        return [job for id in ids if (job := await self._store.get(id)) is not None]

    async def find(self, keys: Collection[KeyName]) -> dict[KeyName, UUID]:
        return {key: id for key in keys if (id := self._store.holder_of(key)) is not None}

    async def register(self, holder: UUID, waits: Mapping[UUID, timedelta]) -> None: ...

    async def remove(self, holder: UUID, ids: Collection[UUID]) -> None: ...

    async def forget_expired(self) -> None: ...

    def rings(self, heard: Heard) -> MemoryRings:
        return MemoryRings(self._store, heard)
