"""From a store's address to an open store: postgresql://…, embedded:[folder] or memory:."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.limits import check_store
from holdfast.store.contract import JobReader, Renewer, Store, StoreClock
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.events import EventStore
from holdfast.store.maintenance import MaintenanceStore
from holdfast.store.memory.events import MemoryEvents
from holdfast.store.memory.maintenance import MemoryMaintenance
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from holdfast.store.memory.waiters import MemoryWaiters
from holdfast.store.postgres.driver import open_connection
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.migrate import Applied, Migrator
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.postgres.waiters import PostgresWaiters
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore, ScheduleStore
from holdfast.store.waiters import WaiterStore


async def _nothing_to_check() -> None:
    """Memory is always there."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True, slots=True)
class OpenStore:
    """One store seen through each of its protocols."""

    store: Store
    reader: JobReader
    clock: StoreClock
    renewer: Callable[[], AbstractAsyncContextManager[Renewer]]
    finish_in: FinishInTransaction | None
    schedules: ScheduleStore
    runs: RunStore
    url: str
    maintenance: MaintenanceStore
    events: EventStore
    check: Callable[[], Awaitable[None]] = _nothing_to_check
    """Raises unless the store answers and its schema is the one that this release knows."""
    waiters: WaiterStore | None = None
    rows: Callable[[Rows], RowStore] | None = None
    """The application's own tables in the same database, if there is one."""
    loop: asyncio.AbstractEventLoop | None = field(default_factory=_running_loop)
    """That of its connections. None: it has none and was opened without one, as memory can be."""


@asynccontextmanager
async def opened(url: str, schema: str = "holdfast", *, direct_url: str | None = None) -> AsyncIterator[OpenStore]:
    """An embedded PostgreSQL is started and migrated as needed; a server's schema must be there already.

    `direct_url`: past a pooler, if `url` leads to one.
    """
    if url.rstrip("/") in ("memory:", "memory"):
        memory = MemoryStore()

        @asynccontextmanager
        async def renewer() -> AsyncIterator[MemoryStore]:
            yield memory

        runs = MemoryRuns(memory)
        yield OpenStore(
            memory,
            memory,
            memory.clock,
            renewer,
            finish_in=None,
            schedules=MemorySchedules(memory, runs),
            runs=runs,
            url=url,
            maintenance=MemoryMaintenance(memory, runs),
            events=MemoryEvents(memory),
            waiters=MemoryWaiters(memory),
        )
        return
    async with server_url(url) as server:
        if is_embedded(url):
            await migrate(server, schema)
        store = PostgresStore(server, schema, direct_url=direct_url)
        await store.open()
        try:
            yield OpenStore(
                store,
                PostgresReader(store),
                PostgresClock(store),
                store.renewer,
                store.finish_in,
                schedules=PostgresSchedules(store),
                runs=PostgresRuns(store),
                url=store.url,
                maintenance=PostgresMaintenance(store),
                events=PostgresEvents(store),
                check=store.check,
                waiters=PostgresWaiters(store),
                rows=partial(RowStore, store),
            )
        finally:
            await store.close()


@asynccontextmanager
async def server_url(url: str) -> AsyncIterator[str]:
    """The PostgreSQL behind the address; an embedded one runs at least until the block is left."""
    check_store(url)
    if is_embedded(url):
        address = EmbeddedAddress.parse(url)
        server = await _start(address)
        try:
            yield server.url()
        finally:
            await asyncio.to_thread(server.close)
    elif url.startswith("memory"):
        raise InvalidInput("store: memory: has no server; use postgresql://user@host/database or embedded:")
    else:
        yield url


async def _start(address: EmbeddedAddress) -> EmbeddedServer:
    """A thread cannot be canceled: whoever is, while the server starts, still has to leave it."""
    starting = asyncio.ensure_future(asyncio.to_thread(EmbeddedServer.start, address))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        server = await starting
        await asyncio.to_thread(server.close)
        raise


def is_embedded(url: str) -> bool:
    return url.startswith("embedded:")


async def migrate(server: str, schema: str, *, grant: str | None = None) -> Applied:
    """`grant`: a role that may work there afterwards."""
    connection = await open_connection(server)
    try:
        migrator = Migrator(connection, schema)
        applied = await migrator.migrate()
        if grant is not None:
            await migrator.grant(grant)
        return applied
    finally:
        await connection.close()
