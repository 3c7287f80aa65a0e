"""What all verbs of a PostgreSQL store share: its connections, and how a verb runs on them.

The verbs are one layer up: enqueuing.py, claiming.py, leasing.py, finishing.py, changing.py. One layer down is
driver.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.domain.limits import check_schema
from holdfast.logs.records import get_logger
from holdfast.store.postgres.driver import (
    BY_INDEX,
    Address,
    Pool,
    is_pooled,
    open_connection,
    open_pool,
    read_committed,
    round_trip,
    stay,
    through_pooler,
    translated,
    translation,
)
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.reaching import reaching
from holdfast.store.postgres.sql_files import Fetch, statement

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.store")

_POOL_SIZE = 9
_NEVER_PRODUCING = 1
"""Connections that producers may not use, so a worker can claim and finish while producers wait for a transaction."""
_NEVER_WITH_KEYS = 3
"""The same for producers with keys. They wait most often, so they leave two more for other producers."""
_CLOSE_SECONDS = 2.0
_LAST_TRY_SECONDS = 1.0
_MAINTENANCE_SECONDS = 600.0


class _Places(asyncio.Semaphore):
    def take(self) -> bool:
        """Enter if there is room. Three coroutines of a plain `async with` cost 2% of an enqueue."""
        if self._value == 0 or self._waiters:
            return False
        self._value -= 1
        return True


class ConnectedStore:
    """Holds a small pool. `direct_url` is an address that bypasses the pooler, if `url` leads to one."""

    def __init__(
        self, url: str, schema: str = "holdfast", pool_size: int = _POOL_SIZE, *, direct_url: str | None = None
    ) -> None:
        self.url = url
        """Once the store is open, this includes `?pgbouncer=1` if there is a pooler in front of the server."""
        self._direct_url = direct_url
        self.schema = check_schema(schema)
        self._pool_size = pool_size
        self._pool: Pool | None = None
        self._round_trip = timedelta(0)
        self._producers = _Places(max(1, pool_size - _NEVER_PRODUCING))
        self._producers_with_keys = asyncio.Semaphore(max(1, pool_size - _NEVER_WITH_KEYS))

    async def open(self) -> None:
        """Connect, and refuse a schema that this release does not know."""
        pool = await open_pool(self.url, self._pool_size)
        try:
            with reaching(self.url), translated():
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
        """Raise StoreUnavailable or SchemaMismatch unless the server answers and its schema matches this release."""
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
            # Inlined instead of using `translated()`, because every single job passes through here.
            found = translation(error)
            if found is None:
                raise
            raise found from error

    async def fetch_for_producer(self, verb: str, *arguments: object, with_keys: bool) -> "list[asyncpg.Record]":
        """Like `fetch`, for verbs that may wait for an application's transactions."""
        if with_keys:
            async with self._producers_with_keys, self._producers:
                return await self.fetch(verb, *arguments)
        if not self._producers.take():
            await self._producers.acquire()
        try:
            return await self.fetch(verb, *arguments)
        finally:
            self._producers.release()

    async def fetch_by_index(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like `fetch`, for a read without a pinned function whose table may have grown since it was last analyzed."""
        async with self._acquire() as connection, read_committed(connection):
            await connection.execute(BY_INDEX)
            return await connection.fetch(statement(verb, self.schema, len(arguments)), *arguments)

    async def fetch_for_maintenance(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like `fetch`, for maintenance statements, which may take long and rely on read committed."""
        async with self.maintenance_transaction() as fetch:
            return await fetch(verb, *arguments)

    @asynccontextmanager
    async def maintenance_transaction(self) -> AsyncIterator["Fetch"]:
        """One transaction for several maintenance statements."""
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
        """A connection outside the pool, for another thread. Unfinished work is dropped when the block ends."""
        connection = await self.open_connection()
        try:
            with translated():
                await stay(connection)
            yield connection
        finally:
            connection.terminate()

    async def open_connection(self) -> "asyncpg.Connection[asyncpg.Record]":
        """Open a connection outside the pool, bypassing the pooler if possible.

        Through the pooler, it would share the server's few connections with all clients and wait while they are in use.
        A lease might expire during the wait, and a lock held for hours would occupy one of them for hours.
        """
        if self._direct_url is None or not Address.parse(self.url).pooled:
            return await open_connection(self.url)
        with suppress(HoldfastError):
            return await open_connection(self._direct_url)
        through = await open_connection(self.url)
        # After an outage, the pooler may hold us until the server is back, so a direct attempt may succeed now.
        try:
            async with asyncio.timeout(_LAST_TRY_SECONDS):
                past = await open_connection(self._direct_url)
        except (HoldfastError, TimeoutError) as error:
            # A connection through the pooler is better than none.
            log.info("no connection past the pooler, going through it", error=str(error) or "no answer in time")
            return through
        except BaseException:
            through.terminate()
            raise
        through.terminate()
        return past

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
