"""Runs one statement on a connection of any supported library: asyncpg, psycopg, psycopg2, SQLAlchemy and Django.

Each function returns all rows, or an awaitable of them if the library is async. A library is imported only when one of
its connections is passed in. Neighbor: statement.py.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    from sqlalchemy import Connection as SqlalchemyConnection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

Rows: TypeAlias = Sequence[Iterable[object]]
Parameters: TypeAlias = tuple[object, ...]

# "Atomic" is Django's.
_TRANSACTIONS = ("Transaction", "Atomic")
_NUMBERED = re.compile(r"\$(\d+)")


class AwaitedConnection(Protocol):
    """A connection, session or cursor of an async library, whose `execute` must be awaited."""

    @property
    def execute(self) -> Callable[..., Awaitable[object]]: ...


class BlockingConnection(Protocol):
    """A connection, session or cursor of a blocking library, whose `close` is not awaited."""

    def close(self) -> None: ...


class _DbapiCursor(Protocol):
    def __enter__(self) -> "_DbapiCursor": ...

    def __exit__(self, *error: object) -> object: ...

    def execute(self, sql: str, parameters: Sequence[object]) -> object: ...

    def fetchall(self) -> Rows: ...


class _DbapiConnection(Protocol):
    @property
    def cursor(self) -> Callable[..., _DbapiCursor]: ...


class _Cursor(Protocol):
    connection: object


class _DjangoCursor(Protocol):
    db: _DbapiConnection


def rows_of(connection: object, sql: str, parameters: Parameters, otherwise: str = "") -> Rows | Awaitable[Rows]:
    """Run the statement inside the connection's current transaction.

    `otherwise` is the call that returns the statement itself, to execute it with an unsupported library.
    """
    way = _way_of(connection, otherwise)
    return way(connection, sql, parameters)


def check_color(connection: object, verb: str, otherwise: str = "", *, awaits: bool) -> None:
    """Reject a blocking connection where the answer is awaited, and an async one where it is not."""
    if is_awaited(connection, otherwise) is awaits:
        return
    named = f"the {connection.__class__.__name__} of {_package(connection.__class__)}"
    if awaits:
        raise InvalidInput(f"conn: {named} is blocking; use app.sync.{verb}")
    raise InvalidInput(f"conn: {named} is async; use await app.{verb}")


def is_of_known_library(connection: object) -> bool:
    packages = {package for package, _ in _WAYS}
    return any(_package(each) in packages for each in connection.__class__.__mro__)


def is_awaited(connection: object, otherwise: str = "") -> bool:
    """Whether the connection's library is async. Raises InvalidInput for anything that is not a connection."""
    way = _way_of(connection, otherwise)
    return is_awaited(cast(_Cursor, connection).connection, otherwise) if way is _of_cursor else way in _AWAITED


def _way_of(connection: object, otherwise: str) -> Callable[[Any, str, Parameters], Rows | Awaitable[Rows]]:
    # `__class__` and not type(), because the proxies of tracing libraries imitate the wrapped class only there.
    classes = connection.__class__.__mro__
    for each in classes:
        way = _WAYS.get((_package(each), each.__name__))
        if way is not None:
            return way
    raise _unknown(classes, otherwise)


def text_of(value: object) -> str:
    """Text read by any driver. psycopg returns bytes if the connection has no encoding."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _package(known: type) -> str:
    return known.__module__.partition(".")[0]


def _unknown(classes: tuple[type, ...], otherwise: str) -> InvalidInput:
    packages = {package for package, _ in _WAYS}
    for each in classes:
        if _package(each) in packages:
            named = f"the {each.__name__} of {_package(each)}"
            if each.__name__.endswith(_TRANSACTIONS):
                return InvalidInput(
                    f"{named} is a transaction; pass the connection, session or cursor on which it began"
                )
            return InvalidInput(
                f"{named} does not hold your transaction; pass the connection, session or cursor that does"
            )
    by_hand = f", or execute the `sql` and `parameters` of {otherwise} yourself" if otherwise else ""
    return InvalidInput(
        f"{classes[0].__module__}.{classes[0].__qualname__} is not a supported connection; pass one from asyncpg, "
        f"psycopg, SQLAlchemy or Django{by_hand}"
    )


def _asyncpg(connection: "asyncpg.Connection[asyncpg.Record]", sql: str, parameters: Parameters) -> Awaitable[Rows]:
    return connection.fetch(sql, *parameters)


# A separate raw cursor accepts $n as is, and it affects neither the connection's row factory nor an open cursor's rows.
def _psycopg(connection: "psycopg.Connection[object]", sql: str, parameters: Parameters) -> Rows:
    from psycopg import RawCursor
    from psycopg.rows import tuple_row

    with RawCursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(sql.encode(), parameters).fetchall()


async def _psycopg_async(connection: "psycopg.AsyncConnection[object]", sql: str, parameters: Parameters) -> Rows:
    from psycopg import AsyncRawCursor
    from psycopg.rows import tuple_row

    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(sql.encode(), parameters)
        return await cursor.fetchall()


def _psycopg2(connection: _DbapiConnection, sql: str, parameters: Parameters) -> Rows:
    from psycopg2.extensions import cursor

    return _dbapi(connection.cursor(cursor_factory=cursor), sql, parameters)


def _of_cursor(cursor: _Cursor, sql: str, parameters: Parameters) -> Rows | Awaitable[Rows]:
    return rows_of(cursor.connection, sql, parameters)


def _dbapi(opened: _DbapiCursor, sql: str, parameters: Parameters) -> Rows:
    with opened as cursor:
        cursor.execute(*_percent(sql, parameters))
        return cursor.fetchall()


def _django(connection: _DbapiConnection, sql: str, parameters: Parameters) -> Rows:
    _check_postgresql(getattr(connection, "vendor", "something else"))
    return _dbapi(connection.cursor(), sql, parameters)


def _django_cursor(cursor: _DjangoCursor, sql: str, parameters: Parameters) -> Rows:
    return _django(cursor.db, sql, parameters)


def _sqlalchemy(connection: "SqlalchemyConnection", sql: str, parameters: Parameters) -> Rows:
    _check_postgresql(connection.dialect.name)
    if connection.dialect.paramstyle != "numeric_dollar":
        sql, parameters = _percent(sql, parameters)
    # Not text(), which treats a colon as a parameter. No server-side cursor, which could not insert.
    return connection.exec_driver_sql(sql, parameters, {"stream_results": False}).fetchall()


def _sqlalchemy_session(session: "Session", sql: str, parameters: Parameters) -> Rows:
    return _sqlalchemy(session.connection(), sql, parameters)


def _sqlalchemy_async(connection: "AsyncConnection", sql: str, parameters: Parameters) -> Awaitable[Rows]:
    return connection.run_sync(_sqlalchemy, sql, parameters)


def _sqlalchemy_async_session(session: "AsyncSession", sql: str, parameters: Parameters) -> Awaitable[Rows]:
    return session.run_sync(_sqlalchemy_session, sql, parameters)


def _sqlalchemy_scoped(current: "Callable[[], Session]", sql: str, parameters: Parameters) -> Rows:
    return _sqlalchemy_session(current(), sql, parameters)


def _sqlalchemy_async_scoped(
    current: "Callable[[], AsyncSession]", sql: str, parameters: Parameters
) -> Awaitable[Rows]:
    return _sqlalchemy_async_session(current(), sql, parameters)


def _check_postgresql(database: str) -> None:
    if database != "postgresql":
        raise InvalidInput(f"the connection is to {database}; pass one to the PostgreSQL database that holds the jobs")


def _percent(sql: str, parameters: Parameters) -> tuple[str, Parameters]:
    """Convert $n to %s, for drivers with that parameter style."""
    placed = tuple(parameters[int(number) - 1] for number in _NUMBERED.findall(sql))
    return _NUMBERED.sub("%s", sql.replace("%", "%%")), placed


# Looked up for every class in a connection's ancestry. Top-level packages, because submodules move between releases.
_WAYS: Mapping[tuple[str, str], Callable[[Any, str, Parameters], Rows | Awaitable[Rows]]] = {
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("psycopg", "BaseCursor"): _of_cursor,
    ("psycopg2", "connection"): _psycopg2,
    ("psycopg2", "cursor"): _of_cursor,
    ("sqlalchemy", "Connection"): _sqlalchemy,
    ("sqlalchemy", "Session"): _sqlalchemy_session,
    ("sqlalchemy", "scoped_session"): _sqlalchemy_scoped,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async_session,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async_scoped,
    ("django", "ConnectionProxy"): _django,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "CursorWrapper"): _django_cursor,
}
_AWAITED = (_asyncpg, _psycopg_async, _sqlalchemy_async, _sqlalchemy_async_session, _sqlalchemy_async_scoped)
