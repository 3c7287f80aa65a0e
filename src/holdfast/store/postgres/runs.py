"""Runs on PostgreSQL."""

from datetime import timedelta
from typing import Any

from holdfast.domain.json_text import Json
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.schedules import NewRun, Run


class PostgresRuns:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def start(self, run: NewRun) -> int:
        (row,) = await self._store.fetch("run_start", run.name, run.replica, run.occurrence)
        id: int = row["id"]
        return id

    async def finish(self, id: int, result: Json | None, error: Json | None) -> bool:
        return bool(await self._store.fetch("run_finish", id, result, error))

    async def record(self, run: NewRun, started_ago: timedelta, result: Json | None, error: Json | None) -> None:
        await self._store.fetch("run_record", run.name, run.replica, run.occurrence, started_ago, result, error)

    async def abandon(self, name: str, error: Json) -> int:
        return len(await self._store.fetch("run_abandon", name, error))

    async def list(self, name: str | None, limit: int) -> "list[Run]":
        return [_run(dict(row)) for row in await self._store.fetch("run_list", name, limit)]


def _run(values: dict[str, Any]) -> Run:
    return Run(**values)
