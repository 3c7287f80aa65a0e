"""Waiting for jobs on PostgreSQL. It uses only pooled connections, so it works behind PgBouncer too."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from uuid import UUID

from holdfast.domain.job import Job
from holdfast.domain.keys import KeyName
from holdfast.store.postgres.reader import find_keys, to_job
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.waiters import Heard


class PostgresWaiters:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def not_live(self, ids: Collection[UUID]) -> list[UUID]:
        return [row["id"] for row in await self._store.fetch("not_live", list(ids))]

    async def read(self, ids: Collection[UUID]) -> list[Job]:
        return [to_job(row) for row in await self._store.fetch("show", list(ids))]

    async def find(self, keys: Collection[KeyName]) -> dict[KeyName, UUID]:
        return await find_keys(self._store, list(keys))

    async def register(self, holder: UUID, waits: Mapping[UUID, timedelta]) -> None:
        await self._store.fetch("wait_start", holder, list(waits), list(waits.values()))

    async def remove(self, holder: UUID, ids: Collection[UUID]) -> None:
        await self._store.fetch("wait_end", holder, list(ids))

    async def forget_expired(self) -> None:
        await self._store.fetch("forget_waiters")

    def rings(self, heard: Heard) -> None:  # noqa: ARG002
        """None: rings arrive through wake/final.py."""
        return
