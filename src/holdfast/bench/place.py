"""Where the benchmark runs: a PostgreSQL or a schema of its own, which is gone afterwards."""

import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInput
from holdfast.store.opening import migrate, server_url
from holdfast.store.postgres.driver import open_connection, translated
from holdfast.store.postgres.sql_files import quoted

if TYPE_CHECKING:
    import asyncpg


@dataclass(frozen=True, slots=True)
class Place:
    """`url` is the server's own address, also when the store is an embedded one."""

    url: str
    schema: str
    folder: Path
    is_embedded: bool
    connection: "asyncpg.Connection[asyncpg.Record]"


@contextlib.asynccontextmanager
async def scratch_place(store: str | None) -> AsyncIterator[Place]:
    if store is not None and store.startswith("memory"):
        raise InvalidInput("store: memory: lives in one process, so no workers can share it; use postgresql://…")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with server_url(store or f"embedded:{folder / 'postgres'}") as url:
            schema = f"holdfast_bench_{secrets.token_hex(4)}"
            connection = await open_connection(url)
            try:
                await migrate(url, schema)
                yield Place(url, schema, folder, store is None, connection)
            finally:
                with translated():
                    await connection.execute(f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")
                await connection.close()
