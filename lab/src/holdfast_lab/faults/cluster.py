"""A PostgreSQL cluster as operators run it: two nodes under Patroni with etcd, behind HAProxy.

`url` leads through HAProxy to the primary. The standby gets the primary's WAL through a proxy that can hold it back.
Neighbors: failover.py has a pair without these programs, bouncer.py the PgBouncer in front of HAProxy, and
cases/clusters.py the load.
"""

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast_lab.faults.bouncer import bouncer_program
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.failover import kill_server
from holdfast_lab.faults.programs import Program, free_port, listens
from holdfast_lab.faults.proxy import Proxy
from holdfast_lab.faults.server import FaultServer

TTL_SECONDS = 20
"""How long the leader key of a dead primary lasts: the shortest time that Patroni accepts."""
_SCOPE = "holdfast"
_START_SECONDS = 60.0
_FORMED_SECONDS = 120.0
_TURN_SECONDS = 0.1
_POSTGRES = Path("/usr/lib/postgresql")
_STREAMS = "SELECT FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming' AND sync_state = $2"
_HAPROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout check 2s
    timeout client 30m
    timeout server 30m

listen primary
    bind 127.0.0.1:{port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"""


class _Node:
    """A PostgreSQL and the Patroni that runs it. `log` is the proxy through which its standby reads its WAL."""

    def __init__(self, folder: Path, port: int, log: Proxy) -> None:
        self.folder = folder
        self.port = port
        self.log = log
        self.api = free_port()
        self.patroni = Program(folder, lambda: listens(self.api), _START_SECONDS)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def settings(self) -> Path:
        return self.folder / "patroni.yml"

    def says(self, path: str) -> bool:
        """Whether its Patroni answers this request with 200."""
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.api}{path}", timeout=5) as answer,
        ):
            return bool(answer.status == 200)
        return False


class Cluster(FaultServer):
    """A cluster whose two nodes take turns as the primary."""

    def __init__(self, folder: Path, nodes: list[_Node]) -> None:
        self._front = free_port()
        # With an option in it, because creating a database replaces what comes before the question mark.
        super().__init__(f"postgresql://postgres@127.0.0.1:{self._front}/postgres?timezone=UTC", folder)
        self._nodes = nodes
        self._etcd = free_port()
        self._programs: list[Program] = []
        self._account = _account()

    @classmethod
    @asynccontextmanager
    async def formed(cls) -> AsyncIterator["Cluster"]:
        """Form a cluster in a folder that its programs' account may enter, unlike the folder of a case."""
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-cluster-", ignore_cleanup_errors=True) as name,
            contextlib.ExitStack() as exits,
        ):
            nodes = []
            for number in ("one", "two"):
                port = free_port()
                log = Proxy.before(f"postgresql://postgres@127.0.0.1:{port}/postgres")
                nodes.append(_Node(Path(name) / number, port, await asyncio.to_thread(exits.enter_context, log)))
            cluster = cls(Path(name), nodes)
            try:
                await asyncio.to_thread(cluster._start)
                await cluster.complete(is_synchronous=False)
                yield cluster
            finally:
                await asyncio.to_thread(cluster._end)

    async def complete(self, *, is_synchronous: bool) -> None:
        """Make both nodes run and the standby ready to take over. If it is synchronous, every commit waits for it."""
        for node in self._nodes:
            node.log.flow()
            if not listens(node.api):
                await asyncio.to_thread(self._start_patroni, node)
        primary, standby = await self._roles()
        await asyncio.to_thread(_configure, primary, {"synchronous_mode": is_synchronous})
        way = "sync" if is_synchronous else "async"
        await _until(lambda: standby.says(f"/{way}"), f"{standby.name} is a standby ({way})")
        await _until(lambda: bool(asyncio.run(_ask(primary, _STREAMS, standby.name, way))), f"{standby.name} streams")

    async def hold_back(self) -> None:
        """Cut the standby off from the primary: it misses everything committed from now on."""
        primary, _ = await self._roles()
        primary.log.swallow()

    async def kill_node(self) -> float:
        """Kill the primary's node. Returns the monotonic time of the last commit that the new primary has."""
        primary, standby = await self._roles()
        # Patroni first, or it would restart the server.
        await asyncio.to_thread(primary.patroni.end, signal.SIGKILL)
        await asyncio.to_thread(kill_server, primary.data)
        primary.log.refuse()
        await _promoted(standby)
        ((last,),) = await _ask(standby, "SELECT pg_last_xact_replay_timestamp()")
        found: datetime = last
        return found.timestamp() - time.time() + time.monotonic()

    async def kill_patroni(self) -> None:
        """Kill the primary's Patroni. Its PostgreSQL continues as if it were still the primary."""
        primary, standby = await self._roles()
        await asyncio.to_thread(primary.patroni.end, signal.SIGKILL)
        await _promoted(standby)

    async def switch_over(self) -> None:
        """Switch over by hand, as before maintenance of a node."""
        primary, standby = await self._roles()
        await asyncio.to_thread(self._switch_over, primary, standby)
        await _promoted(standby)

    async def _roles(self) -> tuple[_Node, _Node]:
        """The primary and the standby."""
        one, two = self._nodes
        await _until(lambda: one.says("/primary") or two.says("/primary"), "there is a primary")
        return (one, two) if one.says("/primary") else (two, one)

    def _switch_over(self, primary: _Node, standby: _Node) -> None:
        done = subprocess.run(  # noqa: S603
            ["patronictl", "-c", primary.settings, "switchover", _SCOPE, "--candidate", standby.name, "--force"],  # noqa: S607
            env=self._how()["env"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Broken(f"patronictl: {done.stdout}{done.stderr}")

    def _start(self) -> None:
        if self.folder is not None:
            self._give(self.folder)
        self._start_etcd()
        for node in self._nodes:
            self._folder(node.name)
            node.settings.write_text(json.dumps(self._settings(node)))
            self._start_patroni(node)
        self._start_haproxy()

    def _end(self) -> None:
        for node in self._nodes:
            node.patroni.end(signal.SIGKILL)
            with contextlib.suppress(FileNotFoundError, IndexError):
                kill_server(node.data)
        for program in self._programs:
            program.end(signal.SIGKILL)

    def _start_etcd(self) -> None:
        folder = self._folder("etcd")
        clients, peers = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{free_port()}"
        command = [
            *("etcd", "--name=etcd", f"--data-dir={folder / 'data'}", f"--initial-cluster=etcd={peers}"),
            *(f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
        ]
        self._programs.append(Program(folder, lambda: listens(self._etcd), _START_SECONDS))
        self._programs[-1].start(command, cwd=folder, **self._how())

    def _start_patroni(self, node: _Node) -> None:
        node.patroni.start(["patroni", node.settings], cwd=node.folder, **self._how())

    def _start_haproxy(self) -> None:
        folder = self._folder("haproxy")
        lines = [f"    server {node.name} 127.0.0.1:{node.port} check port {node.api}\n" for node in self._nodes]
        (folder / "haproxy.cfg").write_text(_HAPROXY.format(port=self._front) + "".join(lines))
        self._programs.append(Program(folder, lambda: listens(self._front), _START_SECONDS))
        self._programs[-1].start(["haproxy", "-db", "-f", "haproxy.cfg"], cwd=folder, **self._how())

    def _settings(self, node: _Node) -> dict[str, Any]:
        """As JSON, which is also YAML."""
        return {
            "scope": _SCOPE,
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.api}", "connect_address": f"127.0.0.1:{node.api}"},
            "etcd3": {"host": f"127.0.0.1:{self._etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": 2,
                    "retry_timeout": 5,
                    # A standby that is held back may lag by more than the megabyte allowed by default.
                    "maximum_lag_on_failover": 1 << 30,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}",
                "connect_address": f"127.0.0.1:{node.log.port}",
                "data_dir": str(node.data),
                "bin_dir": str(_postgres_programs()),
                "pgpass": str(node.folder / "pgpass"),
                "parameters": {"unix_socket_directories": str(node.folder)},
                "pg_hba": [f"host {what} all 127.0.0.1/32 trust" for what in ("all", "replication")],
                "authentication": {who: {"username": "postgres"} for who in ("superuser", "replication", "rewind")},
            },
        }

    def _folder(self, name: str) -> Path:
        if self.folder is None:
            raise Broken("a cluster has a folder")
        folder = self.folder / name
        folder.mkdir()
        self._give(folder)
        return folder

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _how(self) -> dict[str, Any]:
        """Process options without this process's environment, because the programs are written in Python too."""
        how: dict[str, Any] = {"env": {"PATH": f"{os.defpath}:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}}
        if self._account is not None:
            how |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        return how


def missing_program() -> str | None:
    """The name of a program that a cluster needs and that is not installed, or None."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    for name in ("etcd", "patroni", "patronictl", "haproxy"):
        if shutil.which(name, path=path) is None:
            return name
    if bouncer_program() is None:
        return "pgbouncer"
    return None if _postgres_programs() is not None else "a server in /usr/lib/postgresql"


def _postgres_programs() -> Path | None:
    """The program folder of the newest PostgreSQL."""
    found = [path.parent for path in _POSTGRES.glob("*/bin/postgres")]
    return max(found, key=lambda folder: float(folder.parent.name), default=None)


def _account() -> "pwd.struct_passwd | None":
    """The account for programs when this process is root, because PostgreSQL refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _configure(node: _Node, settings: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.api}/config", json.dumps(settings).encode(), method="PATCH"
    )
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310


async def _promoted(standby: _Node) -> None:
    await _until(lambda: standby.says("/primary"), f"{standby.name} is the primary")


async def _until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _FORMED_SECONDS
    while not await asyncio.to_thread(is_so):
        if time.monotonic() > end:
            raise Broken(f"the cluster: not within {_FORMED_SECONDS:g} s: {what}")
        await asyncio.sleep(_TURN_SECONDS)


async def _ask(node: _Node, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
    import asyncpg

    connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{node.port}/postgres", timeout=10)
    try:
        return [tuple(row) for row in await connection.fetch(sql, *arguments)]
    finally:
        await connection.close()
