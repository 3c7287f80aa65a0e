"""The PostgreSQL of all measurements, and databases that start as copies of a prepared one.

As copies, both sides of a pair start with the same pages in the same order, no matter how the tables are laid out.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from bench.targets.figures import Run
from holdfast import Holdfast
from holdfast.store.opening import migrate, server_url

SCHEMA = "holdfast"
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Fill = Callable[["Stage"], Awaitable[None]]
Install = Callable[[str], Awaitable[None]]
"""Creates Holdfast's tables in the database at this address."""

_PATIENCE_SECONDS = 60.0
_TURN_SECONDS = 0.02
_COMMAND_SECONDS = 1800.0
_SETTINGS_OF_COST = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum", "shared_buffers")
# Only those of clients: autovacuum's reads depend on when it runs and are not a cost of any statement.
_BUFFERS_OF_CLIENTS = """
SELECT sum(hits) + sum(coalesce(
    (to_jsonb(io)->>'read_bytes')::numeric / current_setting('block_size')::numeric, reads, 0))
FROM pg_stat_io AS io WHERE backend_type = 'client backend' AND object = 'relation'"""
_BUFFERS_OF_DATABASE = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
_INDEXES_IN_USE = (Path(__file__).parent / "sql" / "indexes_in_use.sql").read_text()
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"

_STATEMENTS = """
SELECT coalesce(sum(calls), 0) FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""


async def _install(url: str) -> None:
    await migrate(url, SCHEMA)


class Server:
    def __init__(self, url: str, folder: Path, administrator: Connection, *, is_ours: bool) -> None:
        self.folder = folder
        self.is_ours = is_ours
        self.administrator = administrator
        self._url = url
        self._prefix = f"holdfast_targets_{secrets.token_hex(4)}"
        self._templates: set[str] = set()
        self._copies = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, url: str | None, parent: Path | None = None) -> AsyncIterator[Self]:
        """An embedded server below `parent` that is removed afterwards, or our own databases on another server."""
        with tempfile.TemporaryDirectory(prefix="holdfast-targets-", dir=parent, ignore_cleanup_errors=True) as name:
            async with server_url(url or f"embedded:{Path(name, 'postgres')}") as address:
                administrator = await _connect(address)
                server = cls(address, Path(name), administrator, is_ours=url is None)
                try:
                    yield server
                finally:
                    for template in server._templates:
                        await server._drop(server._database(template))
                    await administrator.close()

    async def version(self) -> int:
        return int(await self.administrator.fetchval("SELECT current_setting('server_version_num')::integer / 10000"))

    async def description(self) -> dict[str, str]:
        """The server's version, and the settings that determine the cost of a commit."""
        found = {"PostgreSQL": await self.administrator.fetchval("SHOW server_version")}
        for name in _SETTINGS_OF_COST:
            found[name] = await self.administrator.fetchval("SELECT current_setting($1)", name)
        return found

    async def prepare(self, template: str, fill: Fill | None = None, install: Install = _install) -> None:
        """Create a database to copy, once: Holdfast's tables, filled, in the state in which autovacuum leaves them."""
        if template in self._templates:
            return
        database = self._database(template)
        await self.administrator.execute(f'CREATE DATABASE "{database}"')
        self._templates.add(template)
        await install(self._address(database))
        stage = await Stage.on(self, self._address(database))
        try:
            if fill is not None:
                await fill(stage)
            await stage.connection.execute("VACUUM (FREEZE, ANALYZE)")
        finally:
            await stage.close()

    async def forget(self, template: str) -> None:
        """Free the template's space: several large ones would fill the disk and the cache."""
        if template in self._templates:
            self._templates.remove(template)
            await self._drop(self._database(template))

    @contextlib.asynccontextmanager
    async def copy(self, template: str) -> AsyncIterator["Stage"]:
        self._copies += 1
        database = f"{self._prefix}_{self._copies}"
        source = self._database(template)
        # Copying a large database through the WAL, the default since PostgreSQL 15, would take minutes.
        strategy = "STRATEGY file_copy" if await self.version() >= 15 else ""
        await self.administrator.execute(f'CREATE DATABASE "{database}" TEMPLATE "{source}" {strategy}')
        try:
            stage = await Stage.on(self, self._address(database))
            try:
                await stage.warm()
                # Keep a checkpoint that the copy requested out of the measurement.
                await self.administrator.execute("CHECKPOINT")
                yield stage
            finally:
                await stage.close()
        finally:
            await self._drop(database)

    def _database(self, template: str) -> str:
        return f"{self._prefix}_{template}"

    def _address(self, database: str) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{quote(database)}"))

    async def _drop(self, database: str) -> None:
        await self.administrator.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')


class Stage:
    """One database, and a connection for inspecting it."""

    def __init__(self, server: Server, url: str, connection: Connection, buffers: str) -> None:
        self.server = server
        self.url = url
        self.connection = connection
        self._buffers = buffers

    @classmethod
    async def on(cls, server: Server, url: str) -> Self:
        # pg_stat_io covers the whole server, and only our own server has no other users.
        has_clients_apart = server.is_ours and await server.version() >= 16
        return cls(server, url, await _connect(url), _BUFFERS_OF_CLIENTS if has_clients_apart else _BUFFERS_OF_DATABASE)

    async def close(self) -> None:
        await self.connection.close()

    async def value(self, sql: str, *arguments: object) -> Any:  # noqa: ANN401
        return await self.connection.fetchval(sql, *arguments)

    async def warm(self) -> None:
        """Load what a queue in use has in the shared buffers: waiting jobs, leases and today, but no history.

        Read along each index, because a sequential scan of a large table leaves little of it in the buffers.
        """
        async with self.connection.transaction():
            for way in ("seqscan", "bitmapscan", "indexonlyscan", "sort"):
                await self.connection.execute(f"SET LOCAL enable_{way} = off")
            for index in await self.connection.fetch(_INDEXES_IN_USE):
                ordered = f"SELECT FROM {index['tabled']} ORDER BY {index['columns']} OFFSET 0"
                await self.connection.execute(f"SELECT count(*) FROM ({ordered}) AS ordered")

    @contextlib.asynccontextmanager
    async def app(self) -> AsyncIterator[Holdfast]:
        """An app to enqueue with."""
        app = Holdfast(self.url, schema=SCHEMA)
        async with app:
            yield app

    async def until_value(self, sql: str, *arguments: object) -> None:
        """Wait until the query returns true."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not await self.value(sql, *arguments):  # noqa: ASYNC110 - another process ends it
                await asyncio.sleep(_TURN_SECONDS)

    async def alone(self) -> None:
        """Wait until all other connections are closed: only then are all of their counters reported."""
        await self.until_value(
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    async def counts_statements(self) -> bool:
        """Whether the server has loaded pg_stat_statements; if so, create the extension."""
        if "pg_stat_statements" not in await self.value("SHOW shared_preload_libraries"):
            return False
        try:
            await self.connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        except asyncpg.PostgresError:
            return False
        return True

    async def statements(self) -> int:
        return int(await self.value(_STATEMENTS))

    async def transactions(self) -> int:
        await self._flush()
        return int(await self.value(_TRANSACTIONS))

    async def _flush(self) -> None:
        if await self.server.version() >= 15:
            await self.connection.execute("SELECT pg_stat_force_next_flush()")

    async def _position(self) -> tuple[float, float]:
        await self._flush()
        buffers = float(await self.value(self._buffers))
        return buffers, float(await self.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    @contextlib.asynccontextmanager
    async def metered(self) -> AsyncIterator["Meter"]:
        """Count the work done in the block, whose connections must be closed within it."""
        meter = Meter()
        await self.alone()
        before = await self._position()
        yield meter
        await self.alone()
        after = await self._position()
        meter.buffers, meter.wal_bytes = after[0] - before[0], after[1] - before[1]


class Meter:
    """The pages that the server accessed and the WAL that it wrote, known once the block has ended."""

    buffers = 0.0
    wal_bytes = 0.0

    def run(self, jobs: int, seconds: float) -> Run:
        return Run(jobs, seconds, self.buffers, self.wal_bytes)


async def _connect(url: str) -> Connection:
    return await asyncpg.connect(url, command_timeout=_COMMAND_SECONDS)
