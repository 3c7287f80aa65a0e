"""The application's tables: a pool, transactions, and statements from the folder `sql`.

Every statement takes the tenant as $1. Failures of the connection become `DatabaseUnavailable` here.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from apps.passports.codes import DatabaseUnavailable

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

_FOLDER = Path(__file__).parent / "sql"
# The first process to start makes the tables. Two processes that make them at once would conflict.
_MIGRATION_LOCK = 7_302_114_656
_CONNECTIONS = 10
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
"""Well within a lease: a silent server must end an attempt before its lease does."""
OUTAGES = (
    # Also timeouts.
    OSError,
    asyncpg.InterfaceError,
    # The driver's own state after a connection died in the middle of an exchange.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # A database that accepts no connections, and a replica that was not promoted or is not the primary any more.
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.ReadOnlySQLTransactionError,
)


@cache
def sql(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


async def one(connection: "Pool | Connection", name: str, *arguments: object) -> asyncpg.Record:
    """Return the row of a statement that always gives one, unless there is a bug."""
    row = await connection.fetchrow(sql(name), *arguments)
    if row is None:
        raise LookupError(f"{name}.sql gave no row")
    return row


@contextmanager
def outages_translated() -> Iterator[None]:
    """Turn failures of the connection into `DatabaseUnavailable`. For statements only: OSError has other causes."""
    try:
        yield
    except OUTAGES as error:
        raise DatabaseUnavailable(f"{type(error).__name__}: {error}") from error


@asynccontextmanager
async def transaction(pool: "Pool") -> AsyncIterator["Connection"]:
    with outages_translated():
        async with pool.acquire(timeout=_CONNECT_SECONDS) as connection, connection.transaction():
            yield connection


async def fetch(pool: "Pool", name: str, *arguments: object) -> list[asyncpg.Record]:
    with outages_translated():
        async with pool.acquire(timeout=_CONNECT_SECONDS) as connection:
            return await connection.fetch(sql(name), *arguments)


async def fetch_one(pool: "Pool", name: str, *arguments: object) -> asyncpg.Record | None:
    return next(iter(await fetch(pool, name, *arguments)), None)


@asynccontextmanager
async def opened_pool(url: str) -> AsyncIterator["Pool"]:
    """Open a pool and make the tables. `url` is the store's, `app.url`: jobs and business rows share transactions."""
    # The minimum is 0, because the pool would log a traceback for each failed try while the server is away.
    pool = await asyncpg.create_pool(
        url, min_size=0, max_size=_CONNECTIONS, timeout=_CONNECT_SECONDS, command_timeout=_ANSWER_SECONDS
    )
    try:
        async with pool.acquire(timeout=_CONNECT_SECONDS) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            if not await connection.fetchval(sql("is_complete")):
                await connection.execute(sql("schema"))
        yield pool
    finally:
        try:
            await asyncio.wait_for(pool.close(), _CONNECT_SECONDS)
        except TimeoutError:
            pool.terminate()
