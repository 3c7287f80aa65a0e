"""Shared by the worker tests: waiting for conditions, and running a worker inside the test or as a process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg

from holdfast import Holdfast, Job, JobState
from holdfast.domain.job import Lease
from holdfast.store.contract import Fenced
from holdfast.types import Process, WorkerSettings

PATIENCE = 30.0
_ROOT = Path(__file__).parents[2]


class Database:
    """The test's view of its database, on one connection, because conditions are checked a hundred times a second."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def query(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        if self._connection is None:
            self._connection = psycopg.connect(self.url, autocommit=True)
        cursor = self._connection.execute(sql.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def effects(self, job: UUID) -> list[object]:
        return [note for (note,) in self.query("SELECT note FROM effect WHERE job = %s ORDER BY number", job)]


def eventually(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds:g} s: {what}"
        time.sleep(0.01)


async def until(condition: Callable[[], object | Awaitable[object]], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while True:
        held = condition()
        if isinstance(held, Awaitable):
            held = await held
        if held:
            return
        assert time.monotonic() < end, f"did not happen within {seconds:g} s: {what}"
        await asyncio.sleep(0.01)


async def job_in_state(app: Holdfast, id: UUID, *states: JobState, seconds: float = PATIENCE) -> Job:
    """Wait until the job is in one of the states, and return it."""
    found: Job | None = None

    async def is_there() -> bool:
        nonlocal found
        found = await app.jobs.get(id)
        return found is not None and found.state in states

    try:
        await until(is_there, f"job in state {', '.join(states)}", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {found}") from None
    assert found is not None
    return found


async def final_job(app: Holdfast, id: UUID, seconds: float = PATIENCE) -> Job:
    return await job_in_state(app, id, *(state for state in JobState if state.is_final), seconds=seconds)


async def drained(app: Holdfast, seconds: float = 60.0) -> Counter[JobState]:
    """Wait until no job is ready or running, and return the number of jobs in each state."""
    counts: Counter[JobState] = Counter()

    async def is_drained() -> bool:
        nonlocal counts
        counts = Counter({state: count for state, count in (await app.jobs.count()).items() if count})
        return not counts[JobState.READY] and not counts[JobState.RUNNING]

    await until(is_drained, "all jobs in a final state", seconds)
    return counts


def errors(job: Job) -> list[dict[str, object]]:
    return list(job.errors)


def codes(job: Job) -> list[object]:
    return [error["code"] for error in errors(job)]


def fast(**changes: object) -> WorkerSettings:
    """Settings for tests: short waits, but a long lease."""
    values: dict[str, object] = {
        "concurrency": 4,
        "lease": timedelta(seconds=30),
        "poll": timedelta(milliseconds=50),
        "shutdown": timedelta(seconds=10),
    }
    return WorkerSettings(**(values | changes))  # type: ignore[arg-type]


def renewing(**changes: object) -> WorkerSettings:
    """The same, with a lease long enough for a busy machine, renewed as often as a short one."""
    return fast(**({"lease": timedelta(seconds=12), "renew": timedelta(milliseconds=100)} | changes))


@asynccontextmanager
async def working(
    app: Holdfast, settings: WorkerSettings | None = None, *, exit_code: int = 0
) -> AsyncIterator[Process]:
    """A worker inside the test. It is stopped at the end and must then return `exit_code`."""
    worker = app.worker(settings or fast())
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            returned = await running
    assert returned == exit_code


@dataclass(frozen=True)
class Entry:
    """One line of the journal that handlers in other processes write."""

    what: str
    job: UUID
    fence: int
    attempt: int
    pid: int
    at: float


class ReleasesNothing:
    """A renewer for tests that use only its renewals."""

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        raise AssertionError("no job waits here for an event loop")


class WorkerProcess:
    """tests/worker/runner.py in a separate process."""

    def __init__(self, url: str, folder: Path, log: Path, settings: dict[str, object], *flags: str) -> None:
        self._folder = folder
        self._log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        path = os.pathsep.join([str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        environment |= {"PYTHONPATH": path, "HOLDFAST_TEST_FOLDER": str(folder)}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.worker.runner", url, json.dumps(settings), *flags],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def tally(self) -> Counter[str]:
        """How its attempts ended, written when it stops cleanly."""
        (line,) = [line for line in self.log.splitlines() if line.startswith("tally ")]
        return Counter(json.loads(line.removeprefix("tally ")))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    async def started(self) -> None:
        await until(lambda: "worker started" in self.log or not self.is_running, "the worker started")
        assert self.is_running, self.log

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit_code(self, seconds: float = PATIENCE) -> int:
        await until(lambda: not self.is_running, "the worker exited", seconds)
        return self._process.wait()

    async def stopped(self) -> None:
        """Stop it, and check that it ends cleanly."""
        self.send(signal.SIGTERM)
        assert await self.exit_code() == 0, self.log

    def end(self) -> None:
        if self.is_running:
            self._process.kill()
        self._process.wait()


def journal(folder: Path) -> list[Entry]:
    path = folder / "journal"
    if not path.exists():
        return []
    entries = []
    for line in path.read_text().splitlines():
        what, job, fence, attempt, pid, at = line.split()
        entries.append(Entry(what, UUID(job), int(fence), int(attempt), int(pid), float(at)))
    return entries


def entries_of(folder: Path, job: UUID, what: str) -> list[Entry]:
    return [entry for entry in journal(folder) if entry.job == job and entry.what == what]


def child_processes(parent: int | None = None) -> list[int]:
    """The children of a process, except multiprocessing's resource tracker, which stays for later use."""
    parent = parent or os.getpid()
    children = []
    for thread in Path(f"/proc/{parent}/task").iterdir():
        try:
            children += [int(pid) for pid in (thread / "children").read_text().split()]
        except FileNotFoundError:
            continue
    return [pid for pid in children if not _is_resource_tracker(pid)]


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return True


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie. A process whose threads are still exiting has open pipes."""
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list((process / "task").iterdir())) > 1
    except FileNotFoundError:
        return False
