"""Kinds on PostgreSQL: what workers declared when they started."""

from collections.abc import Collection, Mapping

from holdfast.store.postgres.store import PostgresStore


class PostgresKinds:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def declare(self, versions: Mapping[str, int]) -> None:
        if versions:
            await self._store.fetch("kind_declare", list(versions), list(versions.values()))

    async def undeclared(self, kinds: Collection[str]) -> set[str]:
        return {row["name"] for row in await self._store.fetch("kind_undeclared", list(kinds))}
