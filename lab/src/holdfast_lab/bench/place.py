"""Where the benchmark runs: its own PostgreSQL or its own schema, removed afterwards."""

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.domain.errors import InvalidInput
from holdfast.store.opening import migrate, server_url
from holdfast.store.postgres.driver import Address, open_connection, translated
from holdfast.store.postgres.sql_files import quoted
from holdfast_lab.bench.figures import Counters
from holdfast_lab.bench.sql_files import bench_statement

if TYPE_CHECKING:
    import asyncpg


_FIRST_WITH_FLUSH = 15
_ENDING_SECONDS = 1.0
_TURN_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Place:
    """`url` is the server's own address, even if the store is an embedded one."""

    url: str
    schema: str
    folder: Path
    is_embedded: bool
    connection: "asyncpg.Connection[asyncpg.Record]"

    async def fetch(self, name: str, *arguments: object) -> "list[asyncpg.Record]":
        """Run sql/<name>.sql."""
        with translated():
            return await self.connection.fetch(bench_statement(name, self.schema), *arguments)

    async def value(self, name: str, *arguments: object) -> Any:  # noqa: ANN401
        """Return the first column of the only row."""
        (row,) = await self.fetch(name, *arguments)
        return row[0]

    async def counters(self) -> Counters:
        """Counters of this session and all ended ones. Waits up to a second for newer sessions that are still open."""
        is_exact = self.connection.get_server_version().major >= _FIRST_WITH_FLUSH
        if is_exact:
            patience = time.monotonic() + _ENDING_SECONDS
            while await self.value("younger_sessions") and time.monotonic() < patience:  # noqa: ASYNC110
                await asyncio.sleep(_TURN_SECONDS)
            await self.fetch("flush_counters")
        ((wal_bytes, buffers),) = await self.fetch("counters")
        return Counters(wal_bytes, buffers if is_exact else None)


@contextlib.asynccontextmanager
async def scratch_place(store: str | None) -> AsyncIterator[Place]:
    if store is not None and store.startswith("memory"):
        raise InvalidInput("store: memory: lives in one process, so workers cannot share it; use postgresql://…")
    if store is not None and Address.parse(store).pooled:
        raise InvalidInput("store: ?pgbouncer=1 cannot be measured; give the address of PostgreSQL itself")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with server_url(store or f"embedded:{folder / 'postgres'}") as url:
            schema = f"holdfast_bench_{secrets.token_hex(4)}"
            connection = await open_connection(url)
            try:
                await migrate(url, schema)
                yield Place(url, schema, folder, store is None, connection)
            finally:
                connection.terminate()
                await _drop(url, schema)


async def _drop(url: str, schema: str) -> None:
    """Drop the schema on a new connection, because the old one is closed if its statement was canceled."""
    connection = await open_connection(url)
    try:
        with translated():
            await connection.execute(f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")
    finally:
        await connection.close()
