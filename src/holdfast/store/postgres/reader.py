"""Reading jobs, separate from the verbs that change them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.claim import holder_of
from holdfast.domain.job import Job, JobState, to_id
from holdfast.domain.keys import KeyName
from holdfast.domain.kinds import Kind
from holdfast.domain.limits import at_least
from holdfast.store.contract import MOST_DUE, Backlog, JobFilter
from holdfast.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    import asyncpg


class PostgresReader:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def get(self, id: UUID | str) -> Job | None:
        rows = await self._store.fetch("show", [to_id(id)])
        return to_job(rows[0]) if rows else None

    async def find(self, kind: Kind | str, key: str, tenant: str = "") -> Job | None:
        ids = await find_keys(self._store, [KeyName.of(kind, key, tenant)])
        return await self.get(*ids.values()) if ids else None

    async def list(self, filter: JobFilter, limit: int) -> "list[Job]":
        rows = await self._store.fetch("show", await self.list_ids(filter, limit))
        return [to_job(row) for row in rows]

    async def list_ids(self, filter: JobFilter, limit: int) -> Sequence[UUID]:
        state = filter.state.value if filter.state else None
        rows = await self._store.fetch("list", state, filter.queue, filter.kind, filter.tenant, limit)
        return [row["id"] for row in rows]

    async def count(self) -> Mapping[JobState, int]:
        counts = dict.fromkeys(JobState, 0)
        for row in await self._store.fetch("count"):
            counts[JobState(row["state"])] += row["jobs"]
        return counts

    async def backlog(self, limit: int = MOST_DUE) -> Sequence[Backlog]:
        rows = await self._store.fetch_by_index("backlog", at_least("limit", limit, 0) + 1)
        return [Backlog.of(row["queue"], row["jobs"], row["oldest"], limit) for row in rows]


async def find_keys(store: PostgresStore, keys: Sequence[KeyName]) -> dict[KeyName, UUID]:
    """Return the jobs that hold these keys, without the keys that no job holds."""
    tenants, kinds, names = [list(column) for column in zip(*keys, strict=True)]
    rows = await store.fetch("find", tenants, kinds, names)
    return {keys[row["number"] - 1]: row["id"] for row in rows}


def to_job(row: "asyncpg.Record") -> Job:
    values = dict(row)
    values["state"] = JobState(values["state"])
    claim = values.pop("claim")
    return Job.read(**values, holder=None if claim is None else holder_of(claim))
