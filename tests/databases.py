"""PostgreSQL servers and throwaway databases for tests, and checks that each test has released everything it used.

Each server runs once per test session and is shared by all xdist workers. Each database is a copy of a template.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import LiteralString, Protocol
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import psycopg
from psycopg.sql import SQL, Identifier, Literal

from holdfast.domain.job import LeasedJob
from holdfast.store.contract import ClaimRequest, JobReader, Store, StoreClock
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import Address, translated
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.schema_files import schema_files
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore, ScheduleStore
from tests.bouncers import bounced
from tests.emptying import Original
from tests.rows.tables import DELIVERIES_TABLE, DISPATCH, LOCK_COLUMNS, MORE_STATES, OUTBOX, OUTBOX_TABLE, WHOLE

_TEMPLATE_LOCK = 0x74656D706C617465
_PATIENCE = 30.0
_POOL = 8


class Server(Protocol):
    def url(self, database: str = "postgres") -> str: ...


class NamedServer:
    """An external server. Its user must be allowed to create databases."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    def url(self, database: str = "postgres") -> str:
        return urlunsplit(self._parts._replace(path=f"/{database}"))


class Servers:
    """Starts each server when the first test asks for it. `close` releases them all."""

    def __init__(self, folder: Path, own_folder: Path, url: str | None) -> None:
        """`folder` is shared by all workers of the session, and `own_folder` is not."""
        self._folder = folder
        self._own_folder = own_folder
        self._url = url
        self._running: dict[str, DatabaseMaker] = {}
        self._exits = ExitStack()

    def get(self, name: str) -> "DatabaseMaker":
        if name not in self._running:
            is_pooled = name == "pgbouncer"
            server = self._start("embedded-18" if is_pooled else name)
            self._running[name] = DatabaseMaker(server, self._pooler(server) if is_pooled else None)
        return self._running[name]

    def _pooler(self, server: Server) -> Server:
        return NamedServer(self._exits.enter_context(bounced(server.url(), self._own_folder, pool=_POOL)).url)

    def _start(self, name: str) -> Server:
        if name == "url":
            if self._url is None:
                raise LookupError("HOLDFAST_TEST_URL is not set")
            return NamedServer(self._url)
        version = int(name.removeprefix("embedded-"))
        address = EmbeddedAddress(self._folder / f"postgres-{version}", version, durable=False)
        return self._exits.enter_context(EmbeddedServer.start(address))

    def close(self) -> None:
        for maker in self._running.values():
            maker.close()
        self._exits.close()


@dataclass(frozen=True, slots=True)
class Database:
    """A database for one test, with the newest schema."""

    url: str
    name: str


@dataclass(frozen=True, slots=True)
class StoreCase:
    """One open store, accessible through each of its protocols."""

    name: str
    store: Store
    reader: JobReader
    clock: StoreClock
    schedules: ScheduleStore
    runs: RunStore


@dataclass(frozen=True, slots=True)
class RowCase:
    """An application's table, and the mapping through which the behavior suite sees it."""

    tables: LiteralString
    rows: Rows


ROW_CASES = {
    "rows-outbox": RowCase(OUTBOX_TABLE, OUTBOX),
    # More states than the outbox has, to cover everything a table can have.
    "rows-whole": RowCase(f"{OUTBOX_TABLE}; {MORE_STATES}", WHOLE),
    # The suite enqueues jobs with a payload, so this mapping has a payload column instead of its query.
    "rows-deliveries": RowCase(
        f"{DELIVERIES_TABLE}; {LOCK_COLUMNS}", replace(DISPATCH, kind="work", payload="details", payload_query="")
    ),
}


class DatabaseMaker:
    """Makes and drops databases on one server, which tests reach through `pooler` if there is one.

    Its connection is synchronous, because it outlives the event loops of individual tests.
    """

    def __init__(self, server: Server, pooler: Server | None = None) -> None:
        self.url = server.url
        self._pooler = pooler
        self._admin = psycopg.connect(server.url(), autocommit=True)
        self._template: str | None = None
        self._emptied: dict[str, list[str]] = {}
        self._originals: dict[str, Original] = {}

    def close(self) -> None:
        for names in self._emptied.values():
            for name in names:
                self._drop(name)
        self._admin.close()

    @contextmanager
    def fresh_database(self, *, migrated: bool = True) -> Iterator[Database]:
        """A new database. Leaving the block fails if a connection to it is still open."""
        name = self._create(self._migrated_template() if migrated else "template0")
        try:
            yield Database((self._pooler or self).url(name), name)
            left = self._wait_until_left(name)
        finally:
            self._drop(name)
        assert not left, f"the test left connections open: {left}"

    @contextmanager
    def emptied_database(self, tables: LiteralString = "") -> Iterator[Database]:
        """A migrated database, possibly reused from an earlier test but equivalent to a new one (tests/emptying.py).

        `tables`: SQL that adds an application's tables.
        """
        emptied = self._emptied.setdefault(tables, [])
        name = emptied.pop() if emptied else self._create_with(tables)
        left = ["it failed"]
        try:
            yield Database((self._pooler or self).url(name), name)
            left = self._wait_until_left(name)
        finally:
            if left:
                self._drop(name)
        assert not left, f"the test left connections open: {left}"
        if self._empty(name):
            emptied.append(name)
        else:
            self._drop(name)

    def _create_with(self, tables: LiteralString) -> str:
        name = self._create(self._migrated_template())
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            if tables:
                connection.execute(tables)
            self._originals[name] = Original.of(connection)
        return name

    def _create(self, template: str) -> str:
        name = f"holdfast_test_{uuid4().hex}"
        # Copying the files takes half as long as the default strategy, which writes every block to the WAL.
        self._execute(SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"), name, template)
        return name

    def _drop(self, name: str) -> None:
        self._execute(SQL("DROP DATABASE {} WITH (FORCE)"), name)

    def _empty(self, name: str) -> bool:
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            return self._originals[name].restored(connection)

    def _migrated_template(self) -> str:
        """The template's name. The first test worker to get here creates it."""
        if self._template is None:
            name = f"holdfast_template_{schema_files().digest[:16]}"
            self._admin.execute("SELECT pg_advisory_lock(%s)", (_TEMPLATE_LOCK,))
            if not self._admin.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).fetchall():
                self._build_template(name)
            self._admin.execute("SELECT pg_advisory_unlock(%s)", (_TEMPLATE_LOCK,))
            self._template = name
        return self._template

    def _build_template(self, name: str) -> None:
        building = f"{name}_building"
        self._execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)"), building)
        self._execute(SQL("CREATE DATABASE {} TEMPLATE template0"), building)
        # Run in a thread, because this thread may already be running an event loop.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, migrate(self.url(building), "holdfast")).result()
        assert not self._wait_until_left(building), "the migrator left connections open"
        self._execute(SQL("ALTER DATABASE {} RENAME TO {}"), building, name)

    def _wait_until_left(self, name: str) -> list[str]:
        """Wait until all connections are gone, and return the last statements of those that stay open.

        A close returns before its server process has ended.
        """
        query = (
            "SELECT state || ': ' || query FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            # A pooler keeps its own connections open.
            + (" AND state <> 'idle'" if self._pooler else "")
        )
        deadline = time.monotonic() + _PATIENCE
        while left := self._admin.execute(query, (name,)).fetchall():
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)
        return [row[0] for row in left]

    def _execute(self, sql: SQL, *names: str) -> None:
        self._admin.execute(sql.format(*map(Identifier, names)))


def impatient(url: str, milliseconds: int) -> str:
    """The address of the same database, for a client that fails when it has to wait for a lock."""
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}lock_timeout={milliseconds}&statement_timeout=10000"


@contextmanager
def refusing(url: str) -> Iterator[None]:
    """Close all connections to the database and refuse new ones."""
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as admin:
        allow = SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(allow.format(Identifier(name), Literal(False)))
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            admin.execute(allow.format(Identifier(name), Literal(True)))


@asynccontextmanager
async def connected(url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    address = Address.parse(url)
    connection = await asyncpg.connect(address.dsn, statement_cache_size=address.statement_cache_size)
    try:
        yield connection
    finally:
        await connection.close()


class LookingStore(PostgresStore):
    """Looks before each claim, so that no floor hides a job and claims are as exact as in memory."""

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        await self.look(request.queues, list(request.kinds), shard=request.shard)
        return await super().claim(request)


@asynccontextmanager
async def opened_store(
    url: str, *, schema: str = "holdfast", pool_size: int = 4, looks: bool = True
) -> AsyncIterator[PostgresStore]:
    store = (LookingStore if looks else PostgresStore)(url, schema, pool_size)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class OneConnectionStore(LookingStore):
    """A store on one given connection, without the pool."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        super().__init__("postgresql://")
        self.connection = connection

    async def fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        with translated():
            return await self.connection.fetch(statement(verb, self.schema, len(arguments)), *arguments)

    @asynccontextmanager
    async def _acquire(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        yield self.connection


@asynccontextmanager
async def opened_case(name: str, servers: Servers) -> AsyncIterator[StoreCase]:
    """Open the store of this name, empty."""
    if name == "memory":
        memory = MemoryStore()
        runs = MemoryRuns(memory)
        yield StoreCase(name, memory, memory, memory.clock, MemorySchedules(memory, runs), runs)
        return
    if name in ROW_CASES:
        row_case = ROW_CASES[name]
        with servers.get("embedded-18").emptied_database(row_case.tables) as database:
            async with opened_store(database.url) as store:
                rows = RowStore(store, row_case.rows)
                schedules, runs_kept = PostgresSchedules(store), PostgresRuns(store)
                yield StoreCase(name, rows, rows.jobs, PostgresClock(store), schedules, runs_kept)
        return
    with servers.get(name).emptied_database() as database:
        async with opened_store(database.url) as store:
            reader, clock = PostgresReader(store), PostgresClock(store)
            yield StoreCase(name, store, reader, clock, PostgresSchedules(store), PostgresRuns(store))


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    """Fail if a task that the block started still exists when it ends."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"the test left tasks running: {left}"


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Fail if a thread that the block started still exists when it ends."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _PATIENCE
    for thread in set(threading.enumerate()) - before:
        with suppress(RuntimeError):
            thread.join(max(0.0, deadline - time.monotonic()))
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not left, f"the test left threads running: {left}"
