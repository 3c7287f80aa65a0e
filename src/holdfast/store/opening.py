"""Opens a store by its address: postgresql://…, embedded:[folder] or memory:."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event_loop import running_loop
from holdfast.domain.framework import Answered, Framework
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.limits import check_store
from holdfast.logs.records import get_logger
from holdfast.store.contract import JobReader, Renewer, Store, StoreClock
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.events import EventStore
from holdfast.store.kinds import KindStore
from holdfast.store.maintenance import MaintenanceStore
from holdfast.store.memory.events import MemoryEvents
from holdfast.store.memory.kinds import MemoryKinds
from holdfast.store.memory.maintenance import MemoryMaintenance
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from holdfast.store.memory.waiters import MemoryWaiters
from holdfast.store.postgres.address import plain
from holdfast.store.postgres.connection_store import ConnectionStore
from holdfast.store.postgres.driver import open_connection
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.kinds import PostgresKinds
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.migrate import Applied as Applied
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.reaching import reaching
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.statements import PostgresStatements
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.postgres.waiters import PostgresWaiters
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore, ScheduleStore
from holdfast.store.waiters import WaiterStore

log = get_logger("holdfast.embedded")

_announced: set[str] = set()


def announce_default(url: str) -> None:
    """Log once per process where jobs live by default, in case the address of a server was forgotten."""
    if is_embedded(url) and url not in _announced:
        _announced.add(url)
        folder = EmbeddedAddress.parse(url).folder
        log.warning("no store is set, so jobs live in an embedded PostgreSQL; set HOLDFAST_STORE", folder=str(folder))


async def _nothing_to_check() -> None:
    """Memory is always available."""


@dataclass(frozen=True, slots=True)
class OpenStore:
    """One store, seen through each of its protocols."""

    store: Store
    reader: JobReader
    clock: StoreClock
    renewer: Callable[[], AbstractAsyncContextManager[Renewer]]
    finish_in: FinishInTransaction | None
    schedules: ScheduleStore
    runs: RunStore
    url: str = field(repr=False)
    maintenance: MaintenanceStore
    events: EventStore
    kinds: KindStore
    check: Callable[[], Awaitable[None]] = _nothing_to_check
    """Raises unless the store answers and has the schema that this release expects."""
    waiters: WaiterStore | None = None
    rows: Callable[[Rows], RowStore] | None = None
    """For the application's own tables in the same database, if there is one."""
    ring: Callable[[Sequence[UUID]], None] | None = None
    """Publishes the ids of new jobs to workers that a broker wakes."""
    loop: asyncio.AbstractEventLoop | None = field(default_factory=running_loop)
    """The loop of its connections. None: it has no connections and was opened without a loop, as memory can be."""


@asynccontextmanager
async def opened(url: str, schema: str = "holdfast", *, direct_url: str | None = None) -> AsyncIterator[OpenStore]:
    """Open the store at this address. An embedded PostgreSQL is started and migrated as needed; a server's schema must
    already exist.

    `direct_url`: an address that bypasses the pooler, if `url` leads to one.
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
            kinds=MemoryKinds(),
            waiters=MemoryWaiters(memory),
        )
        return
    async with server_url(url) as server:
        if is_embedded(url):
            await migrate(server, schema)
        store = PostgresStore(server, schema, direct_url=direct_url)
        await store.open()
        try:
            yield of_postgres(store)
        finally:
            await store.close()


def of_postgres(store: PostgresStore) -> OpenStore:
    return OpenStore(
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
        kinds=PostgresKinds(store),
        check=store.check,
        waiters=PostgresWaiters(store),
        rows=partial(RowStore, store),
    )


def reader_on(framework: Framework, schema: str) -> JobReader:
    """Read on the connection of the framework. Its methods never wait for an event loop."""

    async def run(sql: str, parameters: Sequence[str | None]) -> Answered:
        return framework.answered(sql, parameters)

    return PostgresReader(ConnectionStore(run, schema))


def statements(url: str, schema: str) -> PostgresStatements:
    """Return the verbs for a caller's own transaction. Needs no connection."""
    if url.startswith("memory"):
        raise InvalidInput("conn: jobs in memory have no transaction; use a PostgreSQL store, or leave conn out")
    return PostgresStatements(schema)


@asynccontextmanager
async def server_url(url: str) -> AsyncIterator[str]:
    """Yield the URL of the PostgreSQL server behind the address. An embedded one runs at least until the block ends."""
    check_store(url)
    if is_embedded(url):
        address = EmbeddedAddress.parse(url)
        server = await _start(address)
        try:
            yield server.url()
        finally:
            await _close(server)
    elif url.startswith("memory"):
        raise InvalidInput("store: memory: has no server; use postgresql://user@host/database or embedded:")
    else:
        yield url


def database_url(url: str) -> str:
    """Return the address of this store's database for asyncpg and psycopg."""
    if is_embedded(url):
        raise InvalidInput(
            "url: the embedded database has an address only while the app is open; use `async with app:` or "
            "`await app.open()`, or call a verb of app.sync first"
        )
    if url.startswith("memory"):
        raise InvalidInput("url: a store in memory has no database; use postgresql://user@host/database or embedded:")
    return plain(url)


async def _start(address: EmbeddedAddress) -> EmbeddedServer:
    """Start the server in a thread. A thread cannot be canceled, so a canceled caller waits for it and closes it."""
    starting = asyncio.ensure_future(asyncio.to_thread(EmbeddedServer.start, address))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        server = await starting
        await _close(server)
        raise


async def _close(server: EmbeddedServer) -> None:
    try:
        closing = asyncio.get_running_loop().run_in_executor(None, server.close)
    except RuntimeError:
        # The interpreter is exiting, as at the end of a script that used app.sync, and no thread takes new work.
        server.close()
    else:
        await closing


def is_embedded(url: str) -> bool:
    return url.startswith("embedded:")


async def migrate(server: str, schema: str, *, grant: str | None = None) -> Applied:
    """Create or update the schema. `grant`: a role that may work in it afterward."""
    with reaching(server):
        connection = await open_connection(server)
    try:
        migrator = Migrator(connection, schema)
        applied = await migrator.migrate()
        if grant is not None:
            await migrator.grant(grant)
        return applied
    finally:
        await connection.close()
