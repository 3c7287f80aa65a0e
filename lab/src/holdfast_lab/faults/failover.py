"""A PostgreSQL with a standby, by plain streaming replication: the primary is killed and the standby takes its place.

Clients reach the current primary through one proxy. The standby receives the primary's WAL through another, which can
hold it back. Neighbors: cases/failovers.py does this under load; excuses.py knows what a standby may forget.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.proxy import Proxy
from holdfast_lab.faults.server import FaultServer

_CONNECTED_SECONDS = 30.0
_TURN_SECONDS = 0.02
_STREAMS = "SELECT FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1"
_HEARD = "SELECT FROM pg_stat_replication WHERE replay_lsn >= $1::text::pg_lsn"
_WAITS = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@dataclass(frozen=True, slots=True)
class _Server:
    """One of the two servers. `log` is the proxy through which a standby reads its WAL."""

    folder: Path
    use: EmbeddedServer
    log: Proxy

    @property
    def url(self) -> str:
        return self.use.url()

    @property
    def programs(self) -> Path:
        """The folder of the programs that it was started with."""
        return Path(shlex.split((self.folder / "postmaster.opts").read_text())[0]).parent


class FailoverServer(FaultServer):
    """`url` leads to the current primary. Killed servers do not come back."""

    def __init__(self, front: Proxy, primary: _Server, folder: Path, exits: contextlib.ExitStack) -> None:
        # With an option in it, because creating a database replaces what comes before the question mark.
        super().__init__(f"postgresql://postgres@127.0.0.1:{front.port}/postgres?timezone=UTC", primary.folder)
        self._front = front
        self._folder = folder
        self._exits = exits
        self._number = 1
        self._primary = primary
        self._standby: _Server | None = None

    @classmethod
    @asynccontextmanager
    async def opened_pair(cls, folder: Path) -> AsyncIterator["FailoverServer"]:
        """Open with a primary only; `add_standby` adds the standby."""
        await asyncio.to_thread(folder.mkdir, exist_ok=True)
        exits = contextlib.ExitStack()
        try:
            primary = await asyncio.to_thread(_started, folder / "1", exits)
            front = await asyncio.to_thread(exits.enter_context, Proxy.before(primary.url))
            server = cls(front, primary, folder, exits)
            # Keep the WAL that a standby has not read yet.
            await server.execute("ALTER SYSTEM SET wal_keep_size = '256MB'", primary.url)
            await server.execute("SELECT pg_reload_conf()", primary.url)
            yield server
        finally:
            await asyncio.to_thread(exits.close)

    async def add_standby(self, *, is_synchronous: bool) -> None:
        """Add a standby and wait until it streams. With a synchronous one, every commit waits for it from now on."""
        self._number += 1
        folder = self._folder / str(self._number)
        await asyncio.to_thread(_copy, self._primary, folder)
        self._standby = await asyncio.to_thread(_started, folder, self._exits)
        names = "*" if is_synchronous else ""
        await self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'", self._primary.url)
        await self.execute("SELECT pg_reload_conf()", self._primary.url)
        await self._until(_STREAMS, "sync" if is_synchronous else "async")

    async def heard(self) -> None:
        """Wait until the standby has everything that was committed before this call."""
        ((now,),) = await self._ask(self._primary, "SELECT pg_current_wal_flush_lsn()::text")
        await self._until(_HEARD, now)

    async def waits_for_standby(self) -> None:
        """Wait until a commit waits for the standby before it returns."""
        await self._until(_WAITS)

    def hold_back(self) -> None:
        """Cut the standby off from the primary: it misses everything committed from now on."""
        self._primary.log.swallow()

    async def fail_over(self) -> float:
        """Kill the primary and promote the standby. Returns the monotonic time of the last commit that the new primary
        has."""
        standby = self._standby
        if standby is None:
            raise Broken("there is no standby to be promoted")
        await asyncio.to_thread(kill_server, self._primary.folder)
        self._primary.log.refuse()
        ((last,),) = await self._ask(standby, "SELECT pg_last_xact_replay_timestamp() FROM pg_promote(true, 60)")
        self._front.lead_to(standby.url)
        self._primary, self._standby = standby, None
        self.folder = standby.folder
        found: datetime = last
        return found.timestamp() - time.time() + time.monotonic()

    async def _until(self, sql: str, *arguments: object) -> None:
        """Wait until the primary returns a row for this query."""
        patience = time.monotonic() + _CONNECTED_SECONDS
        while not await self._ask(self._primary, sql, *arguments):
            if time.monotonic() > patience:
                raise Broken(f"the primary does not say so after {_CONNECTED_SECONDS:g} s: {sql}")
            await asyncio.sleep(_TURN_SECONDS)

    async def _ask(self, server: _Server, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        import asyncpg

        connection = await asyncpg.connect(server.url, timeout=10)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *arguments)]
        finally:
            await connection.close()


def _started(folder: Path, exits: contextlib.ExitStack) -> _Server:
    use = exits.enter_context(EmbeddedServer.start(EmbeddedAddress(folder)))
    return _Server(folder, use, exits.enter_context(Proxy.before(use.url())))


def _copy(primary: _Server, folder: Path) -> None:
    """Copy the primary, with a standby's settings."""
    done = subprocess.run(  # noqa: S603
        [
            str(primary.programs / "pg_basebackup"),
            *("--host=127.0.0.1", f"--port={primary.log.port}", "--username=postgres", "--no-password"),
            *(f"--pgdata={folder}", "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(f"pg_basebackup: {done.stderr.strip()}")
    owner = primary.folder.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    # Do not inherit the primary's setting: the new server has no standby that it could wait for.
    with (folder / "postgresql.auto.conf").open("a") as settings:
        settings.write("synchronous_standby_names = ''\n")


def kill_server(folder: Path) -> None:
    """Kill all processes of the server with this data folder, as if the machine were gone."""
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    # The postmaster first, or it would start others in their place.
    for pid in (postmaster, *_children(postmaster)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Child processes. Where the kernel does not list them, they notice by themselves that the postmaster is gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
