"""What a case works with: a database, workers, a producer and a recorder, and the means to report violations."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack
from uuid import UUID

from holdfast import Holdfast
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.store.postgres.driver import Address, translated
from holdfast_lab.faults.app import SCHEMA, STORE
from holdfast_lab.faults.crew import Broken, Crew, came_true
from holdfast_lab.faults.judge import DUPLICATE, LOST, STUCK, TARGET, Evidence, Final, Violation, is_stuck, judge
from holdfast_lab.faults.processes import FaultyProcess, start_process
from holdfast_lab.faults.proxy import Proxy
from holdfast_lab.faults.record import EVERYBODY, RECORD, Note, Record, What
from holdfast_lab.faults.server import FaultServer, Place
from holdfast_lab.faults.sql_files import fault_statement

if TYPE_CHECKING:
    import asyncpg

    from holdfast.producer.options import EnqueueOptions

WORKER_APP = "holdfast_lab.faults.app:app"
_TURN_SECONDS = 0.05
_SAMPLE_SECONDS = 0.5
_SAMPLE_PAUSE = 50

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """`module`: the command `holdfast`, possibly with a fault built in. `given`: variables that are not settings."""

    module: str = "holdfast"
    arguments: Sequence[str] = ()
    given: Mapping[str, str] = field(default_factory=dict)


class Said(NamedTuple):
    """How a `holdfast` command ended, with both output streams combined."""

    code: int
    output: str


@dataclass
class Lab:
    """The laboratory of one run of one case."""

    place: Place
    server: FaultServer
    folder: Path
    record: Record
    size: Mapping[str, float]
    random: Random
    lease: float
    worker_app: str
    progress: Callable[[str], None]
    figures: list[Figure] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    last_fault: float = field(default_factory=time.monotonic)
    unhandled: tuple[str, ...] = ()
    """Kinds that no worker is supposed to handle, so their jobs stay open."""
    is_sampled: bool = True
    """Whether the laboratory reads all final jobs now and then."""
    _producer: Holdfast | None = None
    _seen: dict[UUID, Final] = field(default_factory=dict)
    _number: int = 0
    _notes: list[Note] = field(default_factory=list)
    _read_bytes: int = 0
    _is_cut_off: bool = False
    _beside: "list[asyncio.Task[Any]]" = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.place.url

    @property
    def schema(self) -> str:
        return self.place.schema

    @property
    def producer(self) -> Holdfast:
        if self._producer is None:
            raise Broken("the laboratory is not open")
        return self._producer

    def count(self, name: str) -> int:
        return int(self.size[name])

    def beside(self, work: Coroutine[Any, Any, Value]) -> "asyncio.Task[Value]":
        """Run in the background until it ends or the laboratory closes."""
        task = asyncio.create_task(work)
        self._beside.append(task)
        return task

    async def end_beside(self) -> None:
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    # What a case finds

    def violation(self, kind: str, text: str, job: UUID | None = None) -> None:
        self.violations.append(Violation(kind, text, job))

    def note(self, name: str, value: float, unit: str = "") -> None:
        self.figures.append(Figure(name, value, unit))

    def check(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        kind: str = TARGET,
    ) -> None:
        """Record a figure with a bound. A value beyond the bound is a violation of this kind."""
        figure = Figure(name, value, unit, at_most, at_least)
        before = next((each for each in self.figures if each.name == name), None)
        if before is None:
            self.figures.append(figure)
        elif (value > before.value) == (at_most is not None):
            # Of several figures with the same name, show the worst.
            self.figures[self.figures.index(before)] = figure
        if not figure.is_met:
            bound = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
            self.violation(kind, f"{name} is {value:.3g}{unit and ' '}{unit}, but must be {bound}")

    def faulted(self) -> None:
        """Remember that a fault happened just now."""
        self.last_fault = time.monotonic()

    def cut_off(self) -> None:
        """Note that no process can reach the server from now on."""
        self.record.note(What.CUT_OFF, pid=EVERYBODY)
        self._is_cut_off = True
        self.faulted()

    def back(self) -> None:
        self.record.note(What.BACK, pid=EVERYBODY)
        self._is_cut_off = False
        self.faulted()

    def forgot(self, since: float) -> None:
        """Note that the store lost everything committed since then, on the monotonic clock."""
        self.record.note(What.FORGOTTEN, pid=EVERYBODY, since=since)

    # The producer

    async def enqueue(self, kind: str, payload: object = None, **options: Unpack["EnqueueOptions"]) -> UUID | None:
        """Return the job's id, or None if the reply was lost and the job may or may not exist."""
        ids = await self.enqueue_many(kind, 1, payload, **options)
        return ids[0] if ids else None

    async def enqueue_many(
        self, kind: str, number: int, payload: object = None, **options: Unpack["EnqueueOptions"]
    ) -> list[UUID]:
        """Enqueue all jobs or none. An empty list means that the reply was lost."""
        return await self.enqueue_each(kind, [payload or {}] * number, **options)

    async def enqueue_each(
        self, kind: str, payloads: Sequence[object], **options: Unpack["EnqueueOptions"]
    ) -> list[UUID]:
        """Like `enqueue_many`, with one job per payload."""
        jobs = [self.producer.job(kind, payload, **options) for payload in payloads]
        for job in jobs:
            self.record.note(What.ENQUEUING, job.id, kind=kind)
        try:
            await self.producer.enqueue_many(jobs)
        except InvalidInput:
            for job in jobs:
                self.record.note(What.REFUSED, job.id)
            raise
        except StoreUnavailable:
            return []
        for job in jobs:
            self.record.note(What.ACCEPTED, job.id)
        return [job.id for job in jobs]

    @asynccontextmanager
    async def producing(self, url: str, *, listen_url: str) -> AsyncIterator[None]:
        """Make the producer use another route to the same store while the block runs."""
        usual = self._producer
        way = Holdfast(url, schema=self.schema)
        way.settings = way.settings.changed(listen_url=listen_url)
        async with way:
            self._producer = way
            try:
                yield
            finally:
                self._producer = usual

    # Workers

    def start_worker(
        self, app: str | None = None, *, url: str | None = None, launch: Launch | None = None, **settings: object
    ) -> FaultyProcess:
        """`url`: another route to the same store, such as a proxy."""
        launch = launch or Launch()
        self._number += 1
        store = ["--store", url or self.url, "--schema", self.schema]
        command = [launch.module, "worker", "--app", app or self.worker_app, *store, *launch.arguments]
        usual = {"lease": f"{self.lease:g}s", "concurrency": "8", "shutdown": "5s"}
        return start_process(
            command,
            self.folder / f"worker-{self._number}.log",
            self.record,
            usual | {name: str(value) for name, value in settings.items()},
            {STORE: url or self.url, SCHEMA: self.schema, RECORD: str(self.folder / "record.sock"), **launch.given},
        )

    async def command(self, *arguments: str, launch: Launch | None = None, seconds: float = 60.0) -> Said:
        """Run `holdfast …` and wait for it to end."""
        launch = launch or Launch()
        self._number += 1
        log = self.folder / f"command-{self._number}.log"
        process = start_process([launch.module, *arguments], log, self.record, {}, launch.given)
        if await process.ended(seconds) is None:
            await process.kill()
            raise Broken(f"`holdfast {arguments[0]}` did not end within {seconds:g} s")
        return Said(process.exit_code or 0, process.output())

    def adopt(self, kind: str, ids: Iterable[UUID]) -> None:
        """Accept jobs that the laboratory did not enqueue itself, such as those of a schedule."""
        for id in ids:
            self.record.note(What.ENQUEUING, id, kind=kind)
            self.record.note(What.ACCEPTED, id)

    @asynccontextmanager
    async def workers(
        self,
        number: int,
        app: str | None = None,
        *,
        url: str | None = None,
        launch: Launch | None = None,
        **settings: object,
    ) -> AsyncIterator["Crew"]:
        """Workers that run while the block does. Name settings as in HOLDFAST_… ."""
        crew = Crew(lambda: self.start_worker(app, url=url, launch=launch, **settings))
        try:
            await crew.start(number)
            yield crew
        finally:
            await crew.close()

    # The store

    async def fetch(self, name: str, *arguments: object) -> "list[asyncpg.Record]":
        """Run sql/<name>.sql on a connection that the laboratory's faults never kill."""
        with translated():
            connection = await self.connect()
            try:
                return await connection.fetch(fault_statement(name, self.schema), *arguments)
            finally:
                connection.terminate()

    async def kill_connections(self, most: int) -> int:
        """Return how many were killed. Other users of the server keep their connections."""
        chosen = str(self.random.getrandbits(32))
        ((killed,),) = await self.fetch("kill_connections", self.place.application, most, chosen)
        found: int = killed
        return found

    async def connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        import asyncpg

        return await asyncpg.connect(
            Address.parse(self.url).dsn, timeout=5, server_settings={"application_name": "holdfast-faults"}
        )

    def proxy(self) -> Proxy:
        """A proxy to the server for a `with` block; its `url` leads through it."""
        return Proxy.before(self.url, seed=self.random.getrandbits(32))

    async def open_jobs(self) -> int:
        """How many jobs are not final, without the unhandled kinds."""
        ((number,),) = await self.fetch("count_open", list(self.unhandled))
        found: int = number
        return found

    async def drained(self, seconds: float) -> float:
        """Return the seconds from the last fault until all jobs were final; more than `seconds` is a violation."""
        while True:
            passed = time.monotonic() - self.last_fault
            with contextlib.suppress(OSError, StoreUnavailable):
                left = await self.open_jobs()
                if not left:
                    self.check("drained after the last fault", passed, "s", at_most=seconds)
                    return passed
                if passed > seconds + 5:
                    self.violation(STUCK, f"{left} jobs are not final {passed:.0f} s after the last fault")
                    return passed
            if passed > seconds + 60:
                raise Broken("the store cannot be asked how many jobs are left")
            await asyncio.sleep(_TURN_SECONDS)

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 30.0, kind: str = TARGET) -> bool:
        """Return whether the condition came true in time; if it did not, report a violation of this kind."""
        is_true = await came_true(condition, seconds)
        if not is_true:
            self.violation(kind, f"{what}: not within {seconds:g} s")
        return is_true

    def notes(self) -> list[Note]:
        """All notes so far. Each is read only once: there may be tens of thousands, and cases look often."""
        with (self.folder / "record.jsonl").open("rb") as file:
            file.seek(self._read_bytes)
            # The last line may be incomplete.
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        self._notes += [Note.read(line) for line in whole.decode().splitlines()]
        return list(self._notes)

    def starts(self) -> dict[UUID, list[Note]]:
        """The attempts at each job so far, earliest first."""
        found: dict[UUID, list[Note]] = {}
        for note in self.notes():
            if note.what is What.START and note.job is not None:
                found.setdefault(note.job, []).append(note)
        return found

    async def until_started(self, jobs: Iterable[UUID], times: int = 1, seconds: float = 30.0) -> bool:
        """Return whether each job was started that often in time. Each one that was not is a violation."""
        wanted = set(jobs)

        def missing() -> list[UUID]:
            starts = self.starts()
            return [job for job in wanted if len(starts.get(job, ())) < times]

        is_true = await came_true(lambda: not missing(), seconds)
        for job in missing() if not is_true else ():
            self.violation(TARGET, f"job {job}: not started {times} times within {seconds:g} s", job)
        return is_true

    def expect_one_start(self, jobs: Iterable[UUID]) -> None:
        """Report each job that was not started exactly once, even if a retry would explain a second start."""
        starts = self.starts()
        for job in jobs:
            if (times := len(starts.get(job, ()))) != 1:
                self.violation(DUPLICATE if times else LOST, f"job {job}: was started {times} times", job)

    async def states(self) -> dict[UUID, str]:
        """The state of every final job."""
        return {final.id: final.state for final in await self._final()}

    async def sample(self) -> None:
        """Remember which jobs are final, because they must stay so, and report leases that should have been rescued."""
        for final in await self._final():
            self._seen.setdefault(final.id, final)
        calm = 0.0 if self._is_cut_off else time.monotonic() - self.last_fault
        for row in await self.fetch("read_open") if is_stuck(calm, calm, self.lease) else ():
            if row["overdue"] is not None and is_stuck(row["overdue"], calm, self.lease):
                self.violation(STUCK, f"job {row['id']}: its lease has been over for {row['overdue']:.1f} s", row["id"])

    async def _final(self) -> list[Final]:
        return [Final(**dict(row)) for row in await self.fetch("read_final")]

    async def sampling(self) -> None:
        took = 0.0
        while True:
            # Sampling reads all final jobs: the longer that takes, the less often it runs, to keep its load small.
            await asyncio.sleep(max(_SAMPLE_SECONDS, took * _SAMPLE_PAUSE))
            started = time.monotonic()
            # A fault may be in progress.
            with contextlib.suppress(Exception):
                if self.is_sampled:
                    await self.sample()
            took = time.monotonic() - started

    async def judged(self) -> list[Violation]:
        """All violations, including those that the case reported itself."""
        open_jobs = await self.fetch("read_open")
        effects = await self.fetch("read_effects")
        evidence = Evidence(
            notes=self.notes(),
            final={final.id: final for final in await self._final()},
            open=frozenset(row["id"] for row in open_jobs),
            effects=[(row["job_id"], row["fence"]) for row in effects],
            seen=self._seen,
            lease=self.lease,
        )
        # Judging may take a second, and cases that run side by side with this one must not wait for it.
        return [*self.violations, *await asyncio.to_thread(judge, evidence)]


@asynccontextmanager
async def recording(folder: Path) -> AsyncIterator[Record]:
    """The recorder's process. It ends with the block, or when this process is gone."""
    path = folder / "record.sock"
    command = [sys.executable, "-m", "holdfast_lab.faults.recorder", str(path), str(folder / "record.jsonl")]
    process = subprocess.Popen(  # noqa: S603, ASYNC220 - not waited for
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        if process.stdout is None or not await asyncio.to_thread(process.stdout.readline):
            raise Broken("the recorder did not start")
        record = Record(path)
        try:
            yield record
        finally:
            record.close()
    finally:
        process.communicate()


@asynccontextmanager
async def opened_lab(lab: Lab) -> AsyncIterator[Lab]:
    """Open the laboratory, with a producer and a task that samples final jobs."""
    producer = Holdfast(lab.url, schema=lab.schema)
    async with producer:
        lab._producer = producer
        lab.beside(lab.sampling())
        try:
            yield lab
        finally:
            await lab.end_beside()
