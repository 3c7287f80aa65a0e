"""The service's own tables: a pool of connections, and statements from the folder `sql`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

_FOLDER = Path(__file__).parent / "sql"
# Whoever starts first makes the tables; two that make them at once would get in each other's way.
_MIGRATION_LOCK = 7_302_114_655


@cache
def sql(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


async def one(connection: "Pool | Connection", name: str, *arguments: object) -> asyncpg.Record:
    """The row of a statement that has one whenever the code is right."""
    row = await connection.fetchrow(sql(name), *arguments)
    if row is None:
        raise LookupError(f"{name}.sql gave no row")
    return row


@asynccontextmanager
async def opened_pool(url: str, *, most: int = 10) -> AsyncIterator["Pool"]:
    """With the tables made. `url` is that of the store, `app.opened.url`: jobs and business rows share transactions."""
    # None is kept for its own sake: while the server is away, the pool would log a traceback for each of its tries.
    async with asyncpg.create_pool(url, min_size=0, max_size=most) as pool:
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            # Not every time: to see that an index is there already locks its table against everybody who writes.
            if not await connection.fetchval(sql("is_complete")):
                await connection.execute(sql("schema"))
        yield pool
