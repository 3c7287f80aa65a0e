"""The store on a connection of a blocking library, in the connection's current transaction, if any.

Used by holdfast.django: `app.sync.jobs` reads on Django's connection, and tests run their jobs there.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import datetime, timedelta, tzinfo
from typing import Any

from holdfast.domain.framework import Answered
from holdfast.domain.statement import interval_text
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresStore

Run = Callable[[str, Sequence[str | None]], Awaitable[Answered]]
"""Runs a statement with %s for each parameter."""

_NUMBERED = re.compile(r"\$(\d+)")


def answered(
    open_cursor: Callable[[], AbstractContextManager[Any]], zone: tzinfo, sql: str, parameters: Sequence[str | None]
) -> Answered:
    """Run a statement on a DB-API connection. `zone` applies to times without a zone."""
    with open_cursor() as cursor:
        cursor.execute(sql, parameters)
        if cursor.description is None:
            return [], []
        rows = [[_aware(value, zone) for value in row] for row in cursor.fetchall()]
        return [column[0] for column in cursor.description], rows


def _aware(value: object, zone: tzinfo) -> object:
    return value.replace(tzinfo=zone) if isinstance(value, datetime) and value.tzinfo is None else value


class _Row(tuple[Any, ...]):  # noqa: SLOT001 - the names are those of its class
    """Read by column position and by column name, as the rows of asyncpg are."""

    names: Sequence[str]

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401
        return super().__getitem__(self.names.index(place) if isinstance(place, str) else place)

    def keys(self) -> Sequence[str]:
        return self.names


class ConnectionStore(PostgresStore):
    _may_copy = False

    def __init__(self, run: Run, schema: str) -> None:
        super().__init__("postgresql://", schema)
        self._run = run

    async def fetch(self, verb: str, *arguments: object) -> Any:  # noqa: ANN401
        return await self.fetch_sql(statement(verb, self.schema, len(arguments)), *arguments)

    async def fetch_by_index(self, verb: str, *arguments: object) -> Any:  # noqa: ANN401
        return await self.fetch(verb, *arguments)

    async def fetch_sql(self, sql: str, *arguments: object) -> Any:  # noqa: ANN401
        """Pass the parameters as text without a type, which PostgreSQL infers for itself, as it does for asyncpg."""
        placed = [_text(arguments[int(number) - 1]) for number in _NUMBERED.findall(sql)]
        columns, rows = await self._run(_NUMBERED.sub("%s", sql.replace("%", "%%")), placed)

        class Row(_Row):
            names = columns

        return [Row(row) for row in rows]

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[Any]:
        yield _Acquired(self)


class _Acquired:
    def __init__(self, store: ConnectionStore) -> None:
        self.fetch = store.fetch_sql


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case timedelta():
            return interval_text(value)
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return "{" + ",".join(map(_element, value)) + "}"
        case _:
            return str(value)


def _element(value: object) -> str:
    text = _text(value)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
