"""Runs statements on an application's table, with plans that use its indexes and errors that name the mapping."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from asyncpg import exceptions as pg

from holdfast.domain.errors import SchemaMismatch, Unstorable
from holdfast.store.postgres.driver import BY_INDEX, LeaseLocked, translated
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows.columns import read_columns
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.sql import RowSql

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

# The row itself is locked with SKIP LOCKED, but a trigger may need another row, which a transaction of the application
# has locked. A statement that waited for it would keep all of its rows locked in the meantime.
_AT_ONCE = f"{BY_INDEX}; SET LOCAL lock_timeout = '10ms'"
# Restores the defaults for the application's own SQL in the same transaction.
AS_PLANNED = "; ".join(f"{setting} TO DEFAULT" for setting in re.findall(r"SET LOCAL \w+", BY_INDEX))
_NOT_AS_MAPPED = (
    pg.UndefinedColumnError,
    pg.UndefinedTableError,
    pg.UndefinedFunctionError,
    pg.UndefinedObjectError,
    pg.DatatypeMismatchError,
    pg.InvalidCachedStatementError,
    pg.PostgresSyntaxError,
    pg.AmbiguousColumnError,
    pg.GroupingError,
    pg.WrongObjectTypeError,
)
_REFUSED_BY_TABLE = (
    pg.IntegrityConstraintViolationError,
    pg.DataError,
    pg.CardinalityViolationError,
    pg.PLPGSQLError,
    pg.TriggeredDataChangeViolationError,
    pg.WithCheckOptionViolationError,
)

Choose = Callable[[RowSql], str]


class RowRefused(Unstorable):
    """The application's constraints or triggers refuse a change to a row. `reason` is PostgreSQL's error line."""

    def __init__(self, message: str, duplicate: str | None = None, reason: str = "") -> None:
        super().__init__(message, reason)
        self.duplicate = duplicate
        """The duplicate value, for the caller that provided it."""


class RowLocked(RowRefused):
    """A transaction of the application holds a lock that a trigger or key of the table needs. Nothing was changed."""


class RowTable:
    """The table of one mapping. Its columns are read on first use, and again after an error that they may explain."""

    def __init__(self, store: PostgresStore, mapping: Rows) -> None:
        self.mapping = mapping
        self.store = store
        self.known_sql: RowSql | None = None
        """None until the columns have been read."""

    def row(self, key: str) -> str:
        """Return a row's name as used in log lines."""
        return f"{self.mapping.name}:{key}"

    async def fetch(
        self, choose: Choose, *arguments: object, on: "Connection | None" = None, by_index: bool = True
    ) -> "list[asyncpg.Record]":
        """Run the statement that `choose` picks in a short transaction, on a pooled connection or `on` this one."""
        async with self._transaction(BY_INDEX if by_index else "", on) as (connection, sql):
            return await connection.fetch(choose(sql), *arguments)

    async def change(
        self, choose: Choose, *arguments: object, on: "Connection | None" = None
    ) -> "list[asyncpg.Record]":
        """The same for a statement that changes rows. Raises RowLocked instead of waiting for the application."""
        async with self.changing(on=on) as (connection, sql):
            return await connection.fetch(choose(sql), *arguments)

    @asynccontextmanager
    async def changing(self, *, on: "Connection | None" = None) -> "AsyncIterator[tuple[Connection, RowSql]]":
        try:
            async with self._transaction(_AT_ONCE, on) as in_transaction:
                yield in_transaction
        except LeaseLocked as error:
            raise RowLocked(f"rows {self.mapping.name!r}: {error}", reason=str(error)) from None

    @asynccontextmanager
    async def _transaction(self, settings: str, on: "Connection | None") -> "AsyncIterator[tuple[Connection, RowSql]]":
        async with self._connection(on) as connection:
            with self.translated():
                async with connection.transaction(isolation="read_committed"):
                    sql = await self.sql(connection)
                    if settings:
                        await connection.execute(settings)
                    yield connection, sql

    async def sql(self, on: "Connection | None" = None) -> RowSql:
        if self.known_sql is None:
            async with self._connection(on) as connection:
                columns = await read_columns(connection, self.mapping)
            if not columns:
                raise SchemaMismatch(
                    f"rows {self.mapping.name!r}: there is no table {'.'.join(self.mapping.place)!r} in this database; "
                    f"create it, or correct `table`"
                )
            key = columns.get(self.mapping.key)
            if key is not None and not key.is_unique:
                raise SchemaMismatch(
                    f"rows {self.mapping.name!r}: the key {self.mapping.key!r} is not unique, so one job would be "
                    f"several rows; name a column with a unique index on that column alone"
                )
            self.known_sql = RowSql.of(self.mapping, columns, self.store.schema)
        return self.known_sql

    @asynccontextmanager
    async def _connection(self, given: "Connection | None") -> "AsyncIterator[Connection]":
        if given is not None:
            with translated():
                yield given
        else:
            async with self.store.acquired() as pooled:
                yield pooled

    @contextmanager
    def translated(self) -> Iterator[None]:
        name = self.mapping.name
        with translated():
            try:
                yield
            except _NOT_AS_MAPPED as error:
                self.known_sql = None
                raise SchemaMismatch(
                    f"rows {name!r}: the table does not match the mapping: {_line(error)}; run `holdfast rows check`"
                ) from error
            except _REFUSED_BY_TABLE as error:
                # Without its cause, whose details quote the row: they belong to the application and not in a log.
                duplicate = error.detail if isinstance(error, pg.UniqueViolationError) else None
                message = f"rows {name!r}: the table refused the change: {_line(error)}"
                raise RowRefused(message, duplicate, _line(error)) from None


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
