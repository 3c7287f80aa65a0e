"""Intercepts statements at the lowest level of each driver, which also covers SQLAlchemy, Django and pools."""

import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any

from holdfast.testing.idempotency.patches import Method, Patch, installed
from holdfast.testing.idempotency.trace import refuse_if_crashed, statement


def of_asyncpg() -> Iterator[Patch]:
    """Connections, pools, prepared statements, cursors and transactions all use this protocol class."""
    from asyncpg.connection import Connection
    from asyncpg.protocol.protocol import Protocol

    def wrapped(original: Method) -> Method:
        @wraps(original)
        async def execute(protocol: object, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            query = arguments[0] if arguments else options["state"]
            with statement(protocol, query if isinstance(query, str) else query.query):
                return await original(protocol, *arguments, **options)

        return execute

    for name in ("query", "bind_execute", "bind_execute_many", "execute", "copy_in", "copy_out"):
        yield Protocol, name, wrapped(getattr(Protocol, name))
    yield Connection, "__del__", _deleting(Connection.__del__)


def of_psycopg() -> Iterator[Patch]:
    """Wrap cursors for statements, and below them the one method that sends BEGIN, COMMIT and the like."""
    psycopg = installed("psycopg")
    if psycopg is None:
        return
    for cursor in (psycopg.Cursor, psycopg.ServerCursor):
        yield cursor, "execute", _executing(cursor.execute)
    for cursor in (psycopg.AsyncCursor, psycopg.AsyncServerCursor):
        yield cursor, "execute", _executing_async(cursor.execute)
    yield psycopg.Cursor, "executemany", _executing(psycopg.Cursor.executemany)
    yield psycopg.AsyncCursor, "executemany", _executing_async(psycopg.AsyncCursor.executemany)
    yield psycopg.Cursor, "copy", _copying(psycopg.Cursor.copy)
    yield psycopg.AsyncCursor, "copy", _copying_async(psycopg.AsyncCursor.copy)
    yield psycopg.Cursor, "stream", _streaming(psycopg.Cursor.stream)
    yield psycopg.AsyncCursor, "stream", _streaming_async(psycopg.AsyncCursor.stream)
    base = psycopg.Connection.__mro__[1]
    yield base, "_exec_command", _commanding(base._exec_command)
    yield base, "__del__", _deleting(base.__del__)


def _executing(original: Method) -> Method:
    @wraps(original)
    def execute(cursor: Any, query: object, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with statement(cursor.connection, _sql(query, cursor)):
            return original(cursor, query, *arguments, **options)

    return execute


def _executing_async(original: Method) -> Method:
    @wraps(original)
    async def execute(cursor: Any, query: object, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        with statement(cursor.connection, _sql(query, cursor)):
            return await original(cursor, query, *arguments, **options)

    return execute


def _copying(original: Method) -> Method:
    @wraps(original)
    @contextmanager
    def copy(cursor: Any, query: object, *arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        refuse_if_crashed()
        with original(cursor, query, *arguments, **options) as copying:
            yield copying
        _executed(cursor, query)

    return copy


def _copying_async(original: Method) -> Method:
    @wraps(original)
    @asynccontextmanager
    async def copy(cursor: Any, query: object, *arguments: Any, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        refuse_if_crashed()
        async with original(cursor, query, *arguments, **options) as copying:
            yield copying
        _executed(cursor, query)

    return copy


def _streaming(original: Method) -> Method:
    @wraps(original)
    def stream(cursor: Any, query: object, *arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        refuse_if_crashed()
        yield from original(cursor, query, *arguments, **options)
        _executed(cursor, query)

    return stream


def _streaming_async(original: Method) -> Method:
    @wraps(original)
    async def stream(cursor: Any, query: object, *arguments: Any, **options: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        refuse_if_crashed()
        async for row in original(cursor, query, *arguments, **options):
            yield row
        _executed(cursor, query)

    return stream


def _executed(cursor: Any, query: object) -> None:  # noqa: ANN401
    """Record a statement during which the caller's code ran. Steps of that code are separate."""
    with statement(cursor.connection, _sql(query, cursor)):
        """The statement has already been executed."""


def _commanding(original: Method) -> Method:
    @wraps(original)
    def command(
        connection: object,
        sql: object,
        *arguments: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> Generator[Any, Any, Any]:
        with statement(connection, _sql(sql, connection)):
            return (yield from original(connection, sql, *arguments, **options))

    return command


def _deleting(original: Method) -> Method:
    """Suppress warnings about unclosed connections: those of a dead run end with it, and nothing could close them."""

    @wraps(original)
    def delete(connection: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            original(connection)

    return delete


def _sql(query: object, context: object) -> str:
    if isinstance(query, bytes):
        return query.decode()
    as_string = getattr(query, "as_string", None)
    return str(query) if as_string is None else str(as_string(context))
