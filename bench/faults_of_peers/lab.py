"""A peer under test: its database, producer and workers, the recorder of Holdfast's laboratory, and a supervisor."""

import asyncio
import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from bench.faults_of_peers.evidence import End, evidence
from bench.faults_of_peers.systems import System
from bench.peers.databases import with_database
from bench.peers.environments import Environments
from bench.peers.settings import ROOT
from holdfast.store.postgres.sql_files import quoted
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.judge import STUCK, Evidence, Violation, judge
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import EVERYBODY, RECORD, Note, Record, What
from holdfast_lab.faults.server import FaultServer

LEASE_SECONDS = 3.0
WORKERS = 3
_TURN_SECONDS = 0.05
_LOOK_SECONDS = 0.2
_STARTED_SECONDS = 20.0
_REPLY_SECONDS = 40.0
_RESTART_SECONDS = 1.0
"""The supervisor's pause before a restart, as systemd does it; PgQueuer's example has 5 s."""
_LAST_WORDS = 400
_PATIENCE_SECONDS = 40.0
"""Time after the last fault: jobs that are not final by then are stuck."""

_KILL_CONNECTIONS = Path(__file__).parent / "sql" / "kill_connections.sql"


@dataclass
class PeerLab:
    system: System
    environments: Environments
    server: FaultServer
    url: str
    folder: Path
    record: Record
    random: Random
    say: Callable[[str], None]
    figures: dict[str, float | None] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    last_fault: float = field(default_factory=time.monotonic)
    undecided: int = 0
    exits: int = 0
    errors: list[str] = field(default_factory=list)
    said_last: list[str] = field(default_factory=list)
    """The last output of workers that ended by themselves."""
    _producer: "asyncio.subprocess.Process | None" = None

    def variables(self) -> dict[str, str]:
        given = {
            "BENCH_URL": self.url,
            RECORD: str(self.folder / "record.sock"),
            "FAULTS_LEASE": f"{LEASE_SECONDS:g}",
            "PYTHONUNBUFFERED": "1",
        }
        return self.environments.variables(self.system.peer) | given

    # Faults

    def faulted(self) -> None:
        self.last_fault = time.monotonic()

    def cut_off(self) -> None:
        self.record.note(What.CUT_OFF, pid=EVERYBODY)
        self.faulted()

    def back(self) -> None:
        self.record.note(What.BACK, pid=EVERYBODY)
        self.faulted()

    async def kill_connections(self, number: int) -> None:
        await self._fetch(_KILL_CONNECTIONS.read_text(encoding="utf-8"), number)
        self.faulted()

    # The producer

    async def enqueue(self, number: int, seconds: float, *, how: str = "wait", kind: str = "work") -> list[UUID]:
        """Return the jobs, or none if the reply was lost and they may or may not exist."""
        jobs = [uuid4() for _ in range(number)]
        for job in jobs:
            self.record.note(What.ENQUEUING, job, kind=kind)
        order = {"kind": kind, "jobs": [{"job": str(job), "seconds": seconds, "how": how} for job in jobs]}
        reply = await self._ask(order)
        if "ids" not in reply:
            self.undecided += number
            self.errors.append(reply["error"])
            return []
        for job, id in zip(jobs, reply["ids"], strict=True):
            self.record.note(What.ACCEPTED, job, id=id)
        return jobs

    async def _ask(self, order: object) -> dict[str, Any]:
        if self._producer is None:
            self._producer = await asyncio.create_subprocess_exec(
                *self.system.command(self.environments, "produce"),
                env=self.variables(),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        producer = self._producer
        assert producer.stdin is not None
        assert producer.stdout is not None
        producer.stdin.write(json.dumps(order).encode() + b"\n")
        line = await asyncio.wait_for(producer.stdout.readline(), _REPLY_SECONDS)
        if not line:
            raise Broken("the producer is gone")
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def close(self) -> None:
        if self._producer is not None and self._producer.returncode is None:
            self._producer.kill()
            await self._producer.wait()

    async def load(self, per_second: int, until: asyncio.Event) -> None:
        """Enqueue small jobs at a steady rate, as far as the producer keeps up."""
        batch = max(1, per_second // 10)
        while not until.is_set():
            due = time.monotonic() + batch / per_second
            await self.enqueue(batch, 0.02)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    # What is known

    def notes(self) -> list[Note]:
        return [Note.read(line) for line in (self.folder / "record.jsonl").read_text().splitlines()]

    async def _fetch(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(
            self.url, timeout=5, command_timeout=20, server_settings={"application_name": "holdfast-faults"}
        )
        try:
            return await connection.fetch(sql, *arguments)
        finally:
            connection.terminate()

    async def open_jobs(self) -> list[asyncpg.Record]:
        return await self._fetch(self.system.sql("open"))

    async def emptied(self) -> "Sequence[asyncpg.Record]":
        """Wait until every job is final. Returns the jobs that are not, once patience after the last fault runs out."""
        left: Sequence[asyncpg.Record] = ()
        while time.monotonic() - self.last_fault < _PATIENCE_SECONDS:
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                left = await self.open_jobs()
                if not left:
                    break
            await asyncio.sleep(_LOOK_SECONDS)
        return left

    async def drained(self) -> None:
        """Report every job that is not final in time as stuck."""
        left = await self.emptied()
        passed = time.monotonic() - self.last_fault
        self.figures["drained after, s"] = None if left else round(passed, 1)
        for row in left:
            text = f"is still {row['state']} {passed:.0f} s after the last fault"
            self.violations.append(Violation(STUCK, f"job {row['job']}: {text}", row["job"]))

    async def judged(self) -> tuple[Evidence, list[Violation]]:
        # The server uses this machine's clock; the recorder notes the monotonic one.
        offset = time.time() - time.monotonic()
        ends = [
            End(row["job"], row["id"], row["state"], row["at"] - offset)
            for row in await self._fetch(self.system.sql("final"))
        ]
        found = evidence(self.notes(), ends, [row["job"] for row in await self.open_jobs()], LEASE_SECONDS)
        return found, [*self.violations, *judge(found)]

    # Workers

    @asynccontextmanager
    async def workers(self, number: int = WORKERS) -> AsyncIterator["PeerCrew"]:
        crew = PeerCrew(self)
        supervising: asyncio.Task[None] | None = None
        try:
            await crew.start(number)
            supervising = asyncio.create_task(crew.supervise())
            yield crew
        finally:
            if supervising is not None:
                supervising.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await supervising
            await crew.close()

    def start_worker(self, number: int) -> FaultyProcess:
        log = self.folder / f"worker-{number}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.system.command(self.environments, "work"),
                env=self.variables(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return FaultyProcess(process, log, self.record)


class PeerCrew:
    """Workers, and a supervisor that replaces each one that ends by itself."""

    def __init__(self, lab: PeerLab) -> None:
        self._lab = lab
        self._processes: list[FaultyProcess] = []
        self._number = 0

    @property
    def alive(self) -> list[FaultyProcess]:
        return [each for each in self._processes if each.is_alive]

    def _start(self) -> FaultyProcess:
        self._number += 1
        process = self._lab.start_worker(self._number)
        self._processes.append(process)
        return process

    async def start(self, number: int = 1) -> None:
        new = [self._start() for _ in range(number)]
        patience = time.monotonic() + _STARTED_SECONDS
        while any("worker started" not in each.output() for each in new):
            if any(not each.is_alive for each in new) or time.monotonic() > patience:
                raise Broken("a worker did not start: " + "\n".join(each.output()[-500:] for each in new))
            await asyncio.sleep(_TURN_SECONDS)

    async def kill(self, process: FaultyProcess) -> None:
        self._processes.remove(process)
        await process.kill()

    async def supervise(self) -> None:
        due: list[float] = []
        while True:
            for gone in [each for each in self._processes if not each.is_alive]:
                self._processes.remove(gone)
                # It ended by itself. Its leases run out like those of a killed worker, which explains what follows.
                self._lab.record.note(What.KILL, pid=gone.pid, exit_code=gone.exit_code)
                self._lab.exits += 1
                self._lab.said_last.append(f"exit code {gone.exit_code}: {gone.output()[-_LAST_WORDS:]}")
                due.append(time.monotonic() + _RESTART_SECONDS)
            while due and due[0] <= time.monotonic():
                due.pop(0)
                self._start()
            await asyncio.sleep(_TURN_SECONDS)

    async def close(self) -> None:
        for each in self.alive:
            if each.is_stopped:
                each.go_on()
            each.terminate()
        await asyncio.gather(*(_ended(each) for each in self._processes))


async def _ended(process: FaultyProcess) -> None:
    if await process.ended(8.0) is None:
        await process.kill()


@asynccontextmanager
async def database(server: FaultServer) -> AsyncIterator[str]:
    name = f"faults_of_peers_{secrets.token_hex(4)}"
    await server.execute(f"CREATE DATABASE {quoted(name)}")
    try:
        yield with_database(server.url, name)
    finally:
        await server.execute(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")


async def install(lab: PeerLab) -> None:
    process = await asyncio.create_subprocess_exec(
        *lab.system.command(lab.environments, "install"),
        env=lab.variables() | {RECORD: ""},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    if process.returncode != 0:
        raise Broken(f"{lab.system.slug} could not be installed: {said.decode(errors='replace')[-800:]}")
