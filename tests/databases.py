"""PostgreSQL servers and throwaway databases for tests, and what every test must have given back when it ends.

Each server runs once per test session and is shared by all xdist workers. Each database is a copy of a template.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
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
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.schema_files import schema_files
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore, ScheduleStore
from tests.emptying import Original
from tests.rows.tables import DELIVERIES_TABLE, DISPATCH, LOCK_COLUMNS, MORE_STATES, OUTBOX, OUTBOX_TABLE, WHOLE

_TEMPLATE_LOCK = 0x74656D706C617465
_PATIENCE = 30.0


class Server(Protocol):
    def url(self, database: str = "postgres") -> str: ...


class NamedServer:
    """A server that somebody else runs. Its user must be allowed to create databases."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)

    def url(self, database: str = "postgres") -> str:
        return urlunsplit(self._parts._replace(path=f"/{database}"))


class Servers:
    """Starts each server when the first test asks for it; `close` leaves them all."""

    def __init__(self, folder: Path, url: str | None, pooler_url: str | None = None) -> None:
        self._folder = folder
        self._url = url
        self._pooler_url = pooler_url
        self._running: dict[str, DatabaseMaker] = {}
        self._embedded: list[EmbeddedServer] = []

    def get(self, name: str) -> "DatabaseMaker":
        if name not in self._running:
            pooler = NamedServer(self._pooler_url) if name == "pgbouncer" and self._pooler_url else None
            self._running[name] = DatabaseMaker(self._start("url" if pooler else name), pooler)
        return self._running[name]

    def _start(self, name: str) -> Server:
        if name == "url":
            if self._url is None:
                raise LookupError("HOLDFAST_TEST_URL is not set")
            return NamedServer(self._url)
        version = int(name.removeprefix("embedded-"))
        server = EmbeddedServer.start(EmbeddedAddress(self._folder / f"postgres-{version}", version, durable=False))
        self._embedded.append(server)
        return server

    def close(self) -> None:
        for maker in self._running.values():
            maker.close()
        while self._embedded:
            self._embedded.pop().close()


@dataclass(frozen=True, slots=True)
class Database:
    """A database of one test, with the newest schema in it."""

    url: str
    name: str


@dataclass(frozen=True, slots=True)
class StoreCase:
    """One open store seen through each of its protocols."""

    name: str
    store: Store
    reader: JobReader
    clock: StoreClock
    schedules: ScheduleStore
    runs: RunStore


@dataclass(frozen=True, slots=True)
class RowCase:
    """An application's table, and the mapping through which the behaviour suite sees it."""

    tables: LiteralString
    rows: Rows


ROW_CASES = {
    "rows-outbox": RowCase(OUTBOX_TABLE, OUTBOX),
    # Not what the outbox has, but what a table can have.
    "rows-whole": RowCase(f"{OUTBOX_TABLE}; {MORE_STATES}", WHOLE),
    # The suite enqueues jobs with a payload, so this one has a column for it in place of its query.
    "rows-deliveries": RowCase(
        f"{DELIVERIES_TABLE}; {LOCK_COLUMNS}", replace(DISPATCH, kind="work", payload="details", payload_query="")
    ),
}


class DatabaseMaker:
    """Makes and drops databases on one server, which tests reach through `pooler` if there is one.

    Its connection blocks: it outlives the event loops of the single tests.
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
        """A new database; leaving the block fails if somebody is still connected to it."""
        name = self._create(self._migrated_template() if migrated else "template0")
        try:
            yield Database((self._pooler or self).url(name), name)
            left = self._wait_until_left(name)
        finally:
            self._drop(name)
        assert not left, f"the test left connections open: {left}"

    @contextmanager
    def emptied_database(self, tables: LiteralString = "") -> Iterator[Database]:
        """A migrated database that may have been another test's before, and is as good as new (tests/emptying.py).

        `tables`: SQL for an application's tables in it.
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
        # A plain copy of files takes half as long as the default, which writes every block to the log.
        self._execute(SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY"), name, template)
        return name

    def _drop(self, name: str) -> None:
        self._execute(SQL("DROP DATABASE {} WITH (FORCE)"), name)

    def _empty(self, name: str) -> bool:
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            return self._originals[name].restored(connection)

    def _migrated_template(self) -> str:
        """Made by whichever test worker comes first."""
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
        # In a thread, because this one may be running an event loop.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, migrate(self.url(building), "holdfast")).result()
        assert not self._wait_until_left(building), "the migrator left connections open"
        self._execute(SQL("ALTER DATABASE {} RENAME TO {}"), building, name)

    def _wait_until_left(self, name: str) -> list[str]:
        """What the connections that stay did last. A client's close returns before its server process is gone."""
        query = (
            "SELECT state || ': ' || query FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            # A pooler keeps its own.
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
    """The same database for a client that fails when it has to wait for a lock."""
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}lock_timeout={milliseconds}&statement_timeout=10000"


@contextmanager
def refusing(url: str) -> Iterator[None]:
    """The database has thrown everybody out and lets nobody in."""
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
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


class LookingStore(PostgresStore):
    """Looks before each claim, so that no floor hides anything and a claim is as exact as in memory."""

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
    """A store on a given connection, without the pool."""

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
    """The store of this name, empty."""
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
    """Fails if a task that the block started is still there when it ends."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"the test left tasks running: {left}"


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Fails if a thread that the block started is still there when it ends."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + _PATIENCE
    for thread in set(threading.enumerate()) - before:
        with suppress(RuntimeError):
            thread.join(max(0.0, deadline - time.monotonic()))
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not left, f"the test left threads running: {left}"
