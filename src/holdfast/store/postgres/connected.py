"""What all verbs of a PostgreSQL store share: its connections, and how a verb runs on them.

Above it are the verbs: enqueuing.py, claiming.py, leasing.py, finishing.py, changing.py. Below it is driver.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.domain.limits import check_schema
from holdfast.log import get_logger
from holdfast.store.postgres.driver import (
    BY_INDEX,
    Address,
    Pool,
    is_pooled,
    open_connection,
    open_pool,
    read_committed,
    round_trip,
    through_pooler,
    translated,
    translation,
)
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.sql_files import Fetch, statement

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.store")

_POOL_SIZE = 8
_CLOSE_SECONDS = 2.0
_MAINTENANCE_SECONDS = 600.0


class ConnectedStore:
    """Holds a small pool. `direct_url`: past a pooler, if `url` leads to one."""

    def __init__(
        self, url: str, schema: str = "holdfast", pool_size: int = _POOL_SIZE, *, direct_url: str | None = None
    ) -> None:
        self.url = url
        """Once the store is open it says `?pgbouncer=1` if a pooler is before the server."""
        self._direct_url = direct_url
        self.schema = check_schema(schema)
        self._pool_size = pool_size
        self._pool: Pool | None = None
        self._round_trip = timedelta(0)

    async def open(self) -> None:
        """Connect, and refuse a schema that this release does not know."""
        pool = await open_pool(self.url, self._pool_size)
        try:
            with translated():
                if Address.parse(self.url).pooled is None and await _is_pooled(pool):
                    self.url = through_pooler(self.url)
                    await pool.close()
                    pool = await open_pool(self.url, self._pool_size)
                async with pool.acquire() as connection:
                    await Migrator(connection, self.schema).check()  # type: ignore[arg-type]
                    self._round_trip = await round_trip(connection)  # type: ignore[arg-type]
        except BaseException:
            await pool.close()
            raise
        self._pool = pool

    async def check(self) -> None:
        """StoreUnavailable or SchemaMismatch unless it answers and its schema is the one this release knows."""
        async with self._acquire() as connection:
            await Migrator(connection, self.schema).check()

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await pool.close()

    async def fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Run a verb on a pooled connection: sql/<verb>.sql, or the function of that name."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open; call open() first")
        try:
            return await self._pool.fetch(statement(verb, self.schema, len(arguments)), *arguments)
        except Exception as error:
            # Written out, because every single job passes here.
            found = translation(error)
            if found is None:
                raise
            raise found from error

    async def fetch_by_index(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like fetch, for what reads a table that was small when it was last looked at, and has no pinned function."""
        async with self._acquire() as connection, read_committed(connection):
            await connection.execute(BY_INDEX)
            return await connection.fetch(statement(verb, self.schema, len(arguments)), *arguments)

    async def fetch_for_maintenance(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like fetch, for statements of maintenance: they may take long, and count on read committed."""
        async with self.maintenance_transaction() as fetch:
            return await fetch(verb, *arguments)

    @asynccontextmanager
    async def maintenance_transaction(self) -> AsyncIterator["Fetch"]:
        """For statements of maintenance that belong together."""
        async with self._acquire() as connection, read_committed(connection):

            async def fetch(verb: str, *arguments: object) -> "list[asyncpg.Record]":
                sql = statement(verb, self.schema, len(arguments))
                return await connection.fetch(sql, *arguments, timeout=_MAINTENANCE_SECONDS)

            yield fetch

    def acquired(self) -> "AbstractAsyncContextManager[asyncpg.Connection[asyncpg.Record]]":
        """A pooled connection, for tables that are not Holdfast's."""
        return self._acquire()

    @asynccontextmanager
    async def connection_of_its_own(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        """One outside the pool, for another thread; what it does is dropped when the block is left."""
        connection = await self.open_connection()
        try:
            yield connection
        finally:
            connection.terminate()

    async def open_connection(self) -> "asyncpg.Connection[asyncpg.Record]":
        """One outside the pool, and past a pooler if there is a way past it.

        There it would share the server's few connections with all clients, and wait while they are in use: a lease may
        run out meanwhile, and a lock that is held for hours takes one of them for hours.
        """
        if self._direct_url is not None and Address.parse(self.url).pooled:
            try:
                return await open_connection(self._direct_url)
            except HoldfastError as error:
                # Later is better than never.
                log.info("no connection past the pooler, going through it", error=str(error))
        return await open_connection(self.url)

    @asynccontextmanager
    async def _acquire(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        if self._pool is None:
            raise StoreUnavailable("the store is not open; call open() first")
        with translated():
            async with self._pool.acquire() as connection:
                yield connection  # type: ignore[misc]


async def _is_pooled(pool: Pool) -> bool:
    async with pool.acquire() as connection:
        return await is_pooled(connection)  # type: ignore[arg-type]
