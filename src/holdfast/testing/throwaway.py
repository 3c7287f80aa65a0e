"""Databases and schemas of one test's own: copies of a template on the embedded server, or a schema beside others."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import platformdirs

from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_connection, translated
from holdfast.store.postgres.sql_files import migrations, quoted, statement

if TYPE_CHECKING:
    import asyncpg

# Advisory lock "hf templ": one process makes the template, the others wait for it.
_TEMPLATE_LOCK = 0x68662074656D706C


def embedded_for_tests() -> EmbeddedAddress:
    """A server apart from the one that `embedded:` names: no test touches what somebody keeps there."""
    home = os.environ.get("HOLDFAST_HOME")
    folder = Path(home) if home else platformdirs.user_cache_path("holdfast")
    return EmbeddedAddress((folder / "testing").resolve(), durable=False)


@asynccontextmanager
async def throwaway_database(url: str | None, schema: str | None) -> AsyncIterator[str]:
    """A new database on the embedded server, empty or with this schema in its newest version."""
    address = embedded_for_tests() if url is None else EmbeddedAddress.parse(url)
    server = await asyncio.to_thread(EmbeddedServer.start, address)
    try:
        admin = await open_connection(server.url())
        try:
            template = "template0" if schema is None else await _template(admin, server, schema)
            name = f"holdfast_test_{uuid4().hex}"
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
    """A new schema in the database at this address."""
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
    """Forget every job; the clock stays where it is."""
    connection = await open_connection(url)
    try:
        await _execute(connection, statement("empty_for_test", schema))
    finally:
        await connection.close()


async def _template(admin: "asyncpg.Connection[asyncpg.Record]", server: EmbeddedServer, schema: str) -> str:
    digest = hashlib.sha256("".join(each.sql for each in migrations(schema)).encode()).hexdigest()
    name = f"holdfast_template_{digest[:32]}"
    await admin.execute("SELECT pg_advisory_lock($1)", _TEMPLATE_LOCK)
    try:
        if not await admin.fetchval("SELECT count(*) FROM pg_database WHERE datname = $1", name):
            building = f"{name}_building"
            await _execute(admin, f'DROP DATABASE IF EXISTS "{building}" WITH (FORCE)')
            await _execute(admin, f'CREATE DATABASE "{building}" TEMPLATE template0')
            await migrate(server.url(building), schema)
            await _execute(admin, f'ALTER DATABASE "{building}" RENAME TO "{name}"')
    finally:
        await admin.execute("SELECT pg_advisory_unlock($1)", _TEMPLATE_LOCK)
    return name


async def _execute(connection: "asyncpg.Connection[asyncpg.Record]", sql: str) -> None:
    with translated():
        await connection.execute(sql)
