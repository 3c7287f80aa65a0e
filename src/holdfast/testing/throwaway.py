"""Databases and schemas for a single test: copies of a template on the embedded server, or a schema next to others."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import platformdirs

from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_connection, translated
from holdfast.store.postgres.schema_files import schema_files
from holdfast.store.postgres.sql_files import quoted, statement

if TYPE_CHECKING:
    import asyncpg

    _Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

# Advisory lock "hf templ": held alone to make or drop templates, shared while one is copied.
_TEMPLATE_LOCK = 0x68662074656D706C
# A process that uses a database holds its lock, on a connection it keeps open. A killed process releases it.
_LOCK_OF_NAME = "hashtextextended($1, 0)"
_UNUSED = """
WITH made AS MATERIALIZED (SELECT datname FROM pg_database WHERE datname ~ '^holdfast_test_[0-9a-f]{32}$')
SELECT datname FROM made WHERE pg_try_advisory_lock(hashtextextended(datname, 0))
"""


def embedded_for_tests() -> EmbeddedAddress:
    """A separate server from the one behind `embedded:`, so tests never touch the data kept there."""
    home = os.environ.get("HOLDFAST_HOME")
    folder = Path(home) if home else platformdirs.user_cache_path("holdfast")
    return EmbeddedAddress((folder / "testing").resolve(), durable=False)


@asynccontextmanager
async def throwaway_database(url: str | None, schema: str | None) -> AsyncIterator[str]:
    """Make a new database on the embedded server, empty or with this schema in its newest version."""
    address = embedded_for_tests() if url is None else EmbeddedAddress.parse(url)
    server = await asyncio.to_thread(EmbeddedServer.start, address)
    try:
        admin = await open_connection(server.url())
        try:
            await _drop_leftovers(admin)
            name = f"holdfast_test_{uuid4().hex}"
            await admin.execute(f"SELECT pg_advisory_lock({_LOCK_OF_NAME})", name)
            async with _template(admin, server, schema) as template:
                await _execute(admin, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
            try:
                yield server.url(name)
            finally:
                await _execute(admin, f'DROP DATABASE "{name}" WITH (FORCE)')
        finally:
            await admin.close()
    finally:
        await asyncio.to_thread(server.close)


@asynccontextmanager
async def throwaway_schema(url: str) -> AsyncIterator[str]:
    """Make a new schema in the database at this address."""
    schema = f"holdfast_test_{uuid4().hex}"
    try:
        await migrate(url, schema)
        yield schema
    finally:
        connection = await open_connection(url)
        try:
            await _execute(connection, f"DROP SCHEMA IF EXISTS {quoted(schema)} CASCADE")
        finally:
            await connection.close()


async def empty(url: str, schema: str) -> None:
    """Remove all jobs, but leave the clock as it is."""
    connection = await open_connection(url)
    try:
        await _execute(connection, statement("empty_for_test", schema))
    finally:
        await connection.close()


@asynccontextmanager
async def _template(admin: "_Connection", server: EmbeddedServer, schema: str | None) -> AsyncIterator[str]:
    """The name of the template to copy, which cannot be dropped until the block ends."""
    if schema is None:
        yield "template0"
        return
    name = f"{_release()}{hashlib.sha256(schema.encode()).hexdigest()[:12]}"
    await admin.execute("SELECT pg_advisory_lock_shared($1)", _TEMPLATE_LOCK)
    while not await _exists(admin, name):
        await admin.execute("SELECT pg_advisory_unlock_shared($1)", _TEMPLATE_LOCK)
        await _make_template(admin, server, schema, name)
        await admin.execute("SELECT pg_advisory_lock_shared($1)", _TEMPLATE_LOCK)
    try:
        yield name
    finally:
        await admin.execute("SELECT pg_advisory_unlock_shared($1)", _TEMPLATE_LOCK)


async def _make_template(admin: "_Connection", server: EmbeddedServer, schema: str, name: str) -> None:
    await admin.execute("SELECT pg_advisory_lock($1)", _TEMPLATE_LOCK)
    try:
        if not await _exists(admin, name):
            building = f"{name}_building"
            await _execute(admin, f'DROP DATABASE IF EXISTS "{building}" WITH (FORCE)')
            await _execute(admin, f'CREATE DATABASE "{building}" TEMPLATE template0')
            await migrate(server.url(building), schema)
            await _execute(admin, f'ALTER DATABASE "{building}" RENAME TO "{name}"')
    finally:
        await admin.execute("SELECT pg_advisory_unlock($1)", _TEMPLATE_LOCK)


async def _exists(admin: "_Connection", name: str) -> bool:
    return bool(await admin.fetchval("SELECT count(*) FROM pg_database WHERE datname = $1", name))


def _release() -> str:
    """The prefix of this release's template names: one schema version, with any schema name."""
    return f"holdfast_template_{schema_files().digest[:16]}_"


async def _drop_leftovers(admin: "_Connection") -> None:
    """Drop databases of killed processes and templates of other releases, unless they are in use."""
    for row in await admin.fetch(_UNUSED):
        await _drop_unless_connected(admin, row["datname"])
        await admin.execute(f"SELECT pg_advisory_unlock({_LOCK_OF_NAME})", row["datname"])
    templates = "SELECT datname FROM pg_database WHERE datname LIKE 'holdfast_template_%' AND NOT datname ^@ $1"
    if await admin.fetch(templates, _release()) and await admin.fetchval(
        "SELECT pg_try_advisory_lock($1)", _TEMPLATE_LOCK
    ):
        for row in await admin.fetch(templates, _release()):
            await _drop_unless_connected(admin, row["datname"])
        await admin.execute("SELECT pg_advisory_unlock($1)", _TEMPLATE_LOCK)


async def _drop_unless_connected(admin: "_Connection", name: str) -> None:
    """A person may be looking at what a test left, or a process that a killed one started may still be running."""
    import asyncpg

    with suppress(asyncpg.ObjectInUseError):
        await admin.execute(f'DROP DATABASE IF EXISTS "{name}"')


async def _execute(connection: "_Connection", sql: str) -> None:
    with translated():
        await connection.execute(sql)
