"""The service's own tables: a pool of connections, and statements from the folder `sql`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import asyncpg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from asyncpg.pool import PoolConnectionProxy

    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

T = TypeVar("T", bound="DataclassInstance")

_FOLDER = Path(__file__).parent / "sql"
# The first process to start makes the tables. Two processes that make them at once would conflict.
_MIGRATION_LOCK = 7_302_114_655
_CONNECTIONS = 10


@cache
def sql(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


async def one(connection: "Pool | Connection", name: str, *arguments: object) -> asyncpg.Record:
    """Return the row of a statement that always gives one, unless there is a bug."""
    row = await connection.fetchrow(sql(name), *arguments)
    if row is None:
        raise LookupError(f"{name}.sql gave no row")
    return row


def from_row(kind: type[T], row: asyncpg.Record, **others: object) -> T:
    """Make a dataclass from the columns named after its fields, and from `others`."""
    columns = {field.name: row[field.name] for field in fields(kind) if field.name not in others}
    return kind(**columns, **others)


@asynccontextmanager
async def opened_pool(url: str) -> AsyncIterator["Pool"]:
    """Open a pool and make the tables. `url` is the store's, `app.url`: jobs and business rows share transactions."""
    # The minimum is 0, because the pool would log a traceback for each failed try while the server is away.
    async with asyncpg.create_pool(url, min_size=0, max_size=_CONNECTIONS) as pool:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            # Only if needed: CREATE INDEX IF NOT EXISTS blocks all writers of its table even if the index exists.
            if not await connection.fetchval(sql("is_complete")):
                await connection.execute(sql("schema"))
        yield pool
