"""How the connections of each library run one statement: asyncpg, psycopg, psycopg2, SQLAlchemy and Django.

Each way gives back all rows, or an awaitable of them where the library is async. Nothing of a library is imported
before one of its connections is here. Neighbour: statement.py.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    from sqlalchemy import Connection as SqlalchemyConnection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

Rows: TypeAlias = Sequence[Iterable[object]]
Parameters: TypeAlias = tuple[object, ...]

# The second is Django's.
_TRANSACTIONS = ("Transaction", "Atomic")
_NUMBERED = re.compile(r"\$(\d+)")


class AwaitedConnection(Protocol):
    """A connection, session or cursor of an async library: its own `execute` has to be awaited."""

    @property
    def execute(self) -> Callable[..., Awaitable[object]]: ...


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
    """Run the statement inside whatever transaction the connection has.

    `otherwise` is where the caller gets the statement, to execute it with a library that is not known here.
    """
    # `__class__` and not type(), because the proxies of tracing libraries pass for what they wrap only by the former.
    classes = connection.__class__.__mro__
    for each in classes:
        way = _WAYS.get((_package(each), each.__name__))
        if way is not None:
            return way(connection, sql, parameters)
    raise _unknown(classes, otherwise)


def text_of(value: object) -> str:
    """A text that some driver read: psycopg gives bytes if the connection has no encoding."""
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
                    f"{named} is a transaction; pass the connection, session or cursor on which it was begun"
                )
            return InvalidInput(
                f"{named} has no transaction of yours; pass the connection, session or cursor that has one"
            )
    by_hand = f", or execute the `sql` and `parameters` of {otherwise} yourself" if otherwise else ""
    return InvalidInput(
        f"{classes[0].__module__}.{classes[0].__qualname__} is not a connection known here; pass one of asyncpg, "
        f"psycopg, SQLAlchemy or Django{by_hand}"
    )


def _asyncpg(connection: "asyncpg.Connection[asyncpg.Record]", sql: str, parameters: Parameters) -> Awaitable[Rows]:
    return connection.fetch(sql, *parameters)


# A cursor of our own takes $n as it is, and neither the connection's row factory nor an open cursor's rows are touched.
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
    # The driver's SQL and not text(), which takes a colon for a parameter. A cursor on the server could not insert.
    return connection.exec_driver_sql(sql, parameters, {"stream_results": False}).fetchall()


def _sqlalchemy_session(session: "Session", sql: str, parameters: Parameters) -> Rows:
    return _sqlalchemy(session.connection(), sql, parameters)


def _sqlalchemy_async(connection: "AsyncConnection", sql: str, parameters: Parameters) -> Awaitable[Rows]:
    return connection.run_sync(_sqlalchemy, sql, parameters)


def _sqlalchemy_async_session(session: "AsyncSession", sql: str, parameters: Parameters) -> Awaitable[Rows]:
    return session.run_sync(_sqlalchemy_session, sql, parameters)


def _sqlalchemy_scoped(current: Callable[[], object], sql: str, parameters: Parameters) -> Rows | Awaitable[Rows]:
    return rows_of(current(), sql, parameters)


def _check_postgresql(database: str) -> None:
    if database != "postgresql":
        raise InvalidInput(f"the connection speaks to {database}; pass one to the PostgreSQL that the jobs live in")


def _percent(sql: str, parameters: Parameters) -> tuple[str, Parameters]:
    """For drivers that write %s."""
    placed = tuple(parameters[int(number) - 1] for number in _NUMBERED.findall(sql))
    return _NUMBERED.sub("%s", sql.replace("%", "%%")), placed


# Any class in a connection's ancestry, by its package and name: modules move between a library's releases.
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
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_scoped,
    ("django", "ConnectionProxy"): _django,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "CursorWrapper"): _django_cursor,
}
