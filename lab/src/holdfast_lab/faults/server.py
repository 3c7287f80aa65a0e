"""The PostgreSQL under test: an embedded server that may be stopped at any moment, or a server of the user's."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.errors import InvalidInput
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_connection, translated
from holdfast.store.postgres.sql_files import quoted
from holdfast_lab.faults.sql_files import fault_statement

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

_GONE_SECONDS = 20.0
_TURN_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Place:
    """One case's migrated schema. Connections that use this address carry `application` as their application name."""

    url: str
    schema: str
    application: str


class FaultServer:
    """`folder`: that of the laboratory's own embedded server. None: the user's server, which is never stopped."""

    def __init__(self, url: str, folder: Path | None) -> None:
        self.url = url
        self.folder = folder
        self.disk: Path | None = None
        """A small disk that holds only this server, for cases that fill it."""
        self._uses: list[EmbeddedServer] = []

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str | None, folder: Path) -> AsyncIterator["FaultServer"]:
        if url is not None:
            yield cls(url, None)
            return
        use = await asyncio.to_thread(EmbeddedServer.start, EmbeddedAddress(folder))
        server = cls(use.url(), folder)
        server._uses.append(use)
        try:
            yield server
        finally:
            for each in server._uses:
                await asyncio.to_thread(each.close)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Create a place and drop it afterwards.

        On the laboratory's own server it is a database, in which the schema has its default name.
        """
        name = f"holdfast_faults_{secrets.token_hex(4)}"
        url, schema = self.url, name
        if self.folder is not None:
            await self.execute(f"CREATE DATABASE {quoted(name)}")
            url, schema = self.url.replace("/postgres?", f"/{name}?"), "holdfast"
        place = Place(f"{url}{'&' if '?' in url else '?'}application_name={name}", schema, name)
        try:
            await migrate(place.url, place.schema)
            await self.execute(fault_statement("effects", place.schema), place.url)
            yield place
        finally:
            what = f"SCHEMA IF EXISTS {quoted(name)} CASCADE"
            if self.folder is not None:
                what = f"DATABASE IF EXISTS {quoted(name)} WITH (FORCE)"
            await self.execute(f"DROP {what}")

    async def execute(self, sql: str, url: str | None = None) -> None:
        connection = await open_connection(url or self.url)
        try:
            with translated():
                await connection.execute(sql)
        finally:
            await connection.close()

    async def stop_immediately(self) -> None:
        """Stop as in a power failure: without a checkpoint and without telling the clients."""
        if self.folder is None:
            raise InvalidInput("url: this case stops PostgreSQL, so it needs its own server; leave out the address")
        pid = int((self.folder / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        patience = time.monotonic() + _GONE_SECONDS
        while _exists(pid) and time.monotonic() < patience:  # noqa: ASYNC110 - nothing announces its end
            await asyncio.sleep(_TURN_SECONDS)

    async def start(self) -> None:
        if self.folder is not None:
            self._uses.append(await asyncio.to_thread(EmbeddedServer.start, EmbeddedAddress(self.folder)))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
