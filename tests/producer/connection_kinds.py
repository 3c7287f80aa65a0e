"""The kinds of connection on which a job can be enqueued, each opened and used as its library intends.

A kind opens a connection with a transaction: leaving the block commits, and an error in the block rolls back. This
module has the drivers; orm_kinds.py has SQLAlchemy and Django.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
from django.db.utils import Error as DjangoError
from psycopg import IsolationLevel
from psycopg.rows import dict_row
from sqlalchemy.exc import DBAPIError

from holdfast import Holdfast
from holdfast.domain.connections import is_awaited
from tests.databases import connected

Answer = TypeVar("Answer")
Nested = AbstractContextManager[object] | AbstractAsyncContextManager[object]

READ_COMMITTED = "READ COMMITTED"
STRICT_LEVELS = ("REPEATABLE READ", "SERIALIZABLE")

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    OSError,
    psycopg.OperationalError,
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
    DBAPIError,
    DjangoError,
)
"""What the libraries raise when their connection is gone."""


async def settled(answer: Answer | Awaitable[Answer]) -> Answer:
    return await answer if isinstance(answer, Awaitable) else answer


def verbs(app: Holdfast, connection: object) -> Any:  # noqa: ANN401
    """The verbs for this connection, async or blocking."""
    return app if is_awaited(connection) else app.sync


@dataclass(frozen=True, slots=True)
class Link:
    """The object to pass as `conn`, and what the library itself can do with the connection."""

    connection: Any
    execute: Callable[[str], object]
    _nested: Callable[[], Nested]

    async def write(self, number: int) -> None:
        await settled(self.execute(f"INSERT INTO orders (number) VALUES ({number})"))

    @asynccontextmanager
    async def nested(self) -> AsyncIterator[None]:
        """A nested transaction."""
        inner = self._nested()
        if isinstance(inner, AbstractAsyncContextManager):
            async with inner:
                yield
        else:
            with inner:
                yield


Opening = Callable[[str, str], AbstractAsyncContextManager[Link]]
KINDS: dict[str, Opening] = {}


def kind(opening: Callable[[str, str], AsyncIterator[Link]]) -> Opening:
    KINDS[opening.__name__] = asynccontextmanager(opening)
    return KINDS[opening.__name__]


class OwnAsyncpgConnection(asyncpg.Connection):
    """An application's subclass."""


@asynccontextmanager
async def _asyncpg(connection: Any, level: str) -> AsyncIterator[Link]:  # noqa: ANN401
    async with connection.transaction(isolation=level.replace(" ", "_").lower()):
        yield Link(connection, connection.execute, connection.transaction)


@kind
async def asyncpg_connection(url: str, level: str) -> AsyncIterator[Link]:
    async with connected(url) as connection, _asyncpg(connection, level) as link:
        yield link


@kind
async def asyncpg_subclass(url: str, level: str) -> AsyncIterator[Link]:
    connection = await asyncpg.connect(url, connection_class=OwnAsyncpgConnection)
    try:
        async with _asyncpg(connection, level) as link:
            yield link
    finally:
        await connection.close()


@kind
async def asyncpg_pool_proxy(url: str, level: str) -> AsyncIterator[Link]:
    pool = asyncpg.create_pool(url, min_size=1, max_size=1)
    async with pool, pool.acquire() as connection, _asyncpg(connection, level) as link:
        yield link


class OwnPsycopgConnection(psycopg.Connection[dict[str, Any]]):
    """An application's subclass."""


def isolation_level(name: str) -> IsolationLevel:
    return IsolationLevel[name.replace(" ", "_")]


@kind
async def psycopg_connection(url: str, level: str) -> AsyncIterator[Link]:
    with psycopg.connect(url) as connection:
        connection.isolation_level = isolation_level(level)
        yield Link(connection, connection.execute, connection.transaction)


@kind
async def psycopg_subclass_with_other_rows_and_cursors(url: str, level: str) -> AsyncIterator[Link]:
    with OwnPsycopgConnection.connect(url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        connection.isolation_level = isolation_level(level)
        yield Link(connection, connection.execute, connection.transaction)


@kind
async def psycopg_cursor(url: str, level: str) -> AsyncIterator[Link]:
    with psycopg.connect(url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        connection.isolation_level = isolation_level(level)
        yield Link(cursor, cursor.execute, connection.transaction)


@kind
async def psycopg_async_connection(url: str, level: str) -> AsyncIterator[Link]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.set_isolation_level(isolation_level(level))
        yield Link(connection, connection.execute, connection.transaction)


@kind
async def psycopg_async_cursor(url: str, level: str) -> AsyncIterator[Link]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.cursor() as cursor:
        await connection.set_isolation_level(isolation_level(level))
        yield Link(cursor, cursor.execute, connection.transaction)


@contextmanager
def _psycopg2(url: str, level: str) -> "Iterator[psycopg2.extensions.connection]":
    connection = psycopg2.connect(url, cursor_factory=psycopg2.extras.RealDictCursor)
    connection.set_session(isolation_level=level)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def _savepoint(execute: Callable[[str], object]) -> Callable[[], Nested]:
    """psycopg2 itself has no API for savepoints."""

    @contextmanager
    def nested() -> Iterator[None]:
        execute("SAVEPOINT here")
        try:
            yield
        except BaseException:
            execute("ROLLBACK TO SAVEPOINT here")
            raise

    return nested


@kind
async def psycopg2_connection(url: str, level: str) -> AsyncIterator[Link]:
    with _psycopg2(url, level) as connection, connection.cursor() as cursor:
        yield Link(connection, cursor.execute, _savepoint(cursor.execute))


@kind
async def psycopg2_cursor(url: str, level: str) -> AsyncIterator[Link]:
    with _psycopg2(url, level) as connection, connection.cursor() as cursor:
        yield Link(cursor, cursor.execute, _savepoint(cursor.execute))
