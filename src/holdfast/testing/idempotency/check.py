"""The check itself: a clean run, then for each step a fresh world, a crash after that step, and a rerun."""

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.app import Holdfast
from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import Handler
from holdfast.domain.job import Job, JobState, NewJob
from holdfast.domain.kinds import Kind
from holdfast.store.contract import JobFilter
from holdfast.testing.attempt import LEASE, Attempted, RecordedFailures, attempted, claimed, hooked, write
from holdfast.testing.drain import MOST_JOBS
from holdfast.testing.idempotency.background import all_ended, tasks_noted, telling_its_end
from holdfast.testing.idempotency.burial import roll_back
from holdfast.testing.idempotency.interception import intercepted
from holdfast.testing.idempotency.report import IdempotencyReport, Problem
from holdfast.testing.idempotency.state import (
    JOBS,
    Column,
    EndState,
    Rows,
    differences,
    job_rows,
    late_steps,
    observed_rows,
    reused_keys,
    sent_counts,
    volatile_columns,
)
from holdfast.testing.idempotency.tables import Tables
from holdfast.testing.idempotency.trace import TRACE, Request, Step, Trace
from holdfast.testing.idempotency.writes import Table, unobserved, written
from holdfast.testing.opening import in_memory, on_postgres
from holdfast.testing.throwaway import empty
from holdfast.worker.hooks import Hooks

Observer = Callable[[], object]
Call = TypeVar("Call", bound=Callable[..., object])

_MOST_STEPS = 200
_MOST_RERUNS = 20
_RESCUE_SECONDS = 10.0
_STILL_RUNNING = "something that the handler started was still running after it returned; none of its steps counts"
_LEFT_OPEN = "a transaction that the handler left open was rolled back, as if its connection had been closed"
_BEFORE_THE_FIRST = Step(0, "", None)
_WRITES = re.compile(r"\b(INSERT INTO|UPDATE .+ SET|DELETE FROM|MERGE INTO)\b|^COPY\b", re.IGNORECASE)


async def check_idempotency(
    app: Holdfast,
    job: Kind[Any, Any] | NewJob | str,
    payload: object = None,
    *,
    observe: Observer | Sequence[Observer] = (),
    setup: Callable[[], object] | None = None,
    database: str | None = None,
    ignore: Sequence[str] = (),
    harmless: Callable[[Request], bool] | None = None,
    also: Sequence[str] = (),
    timeout: Duration = timedelta(seconds=30),
    most_steps: int = _MOST_STEPS,
) -> IdempotencyReport:
    """Check whether the handler of this job can die after any step and be run again without leaving a trace.

    Steps are database statements through asyncpg or psycopg and anything built on them, HTTP requests through httpx,
    urllib, urllib3 or requests, enqueues, and calls of the functions in `also`. The job is run once without a crash.
    Then, for each step, it is run in a fresh world until that step has happened, dies, and is run again as after a
    rescue. The check compares the result with that of the first run: what `observe` returns, the enqueued jobs,
    requests other than reads, and those calls.

    `observe` takes one observer or several. `setup` prepares the world before each run; an observer of type Tables
    restores its tables by itself. The app must not be open: the check opens it in memory, or in a new schema in
    `database`, which a handler with finish_in or conn= needs. `ignore` names columns or whole collections that are not
    compared; `harmless` returns whether repeating a request does no harm.
    """
    if isinstance(job, NewJob) and payload is not None:
        raise InvalidInput("this job already has its payload; pass it to app.job(…) instead")
    new = job if isinstance(job, NewJob) else app._given(job, payload, {})
    handler = app.handlers.get(new.kind)
    if handler is None:
        raise InvalidInput(f"kind {new.kind!r} has no handler in this app")
    world = _World(app, _observers(observe), _callable_or_none("setup", setup))
    check = _Check(
        world,
        new,
        handler,
        _names("ignore", ignore),
        _callable_or_none("harmless", harmless),
        to_timedelta(timeout, "timeout"),
        most_steps,
    )
    with intercepted(_names("also", also)), tasks_noted():
        async with in_memory(app) if database is None else on_postgres(app, database):
            await world.keep()
            try:
                async with hooked(app) as check.hooks:
                    return await check.run()
            finally:
                await world.restore()


@dataclass(frozen=True, slots=True)
class _World:
    """Everything that a run finds and changes, except the job itself."""

    app: Holdfast
    observers: tuple[Observer, ...]
    setup: Callable[[], object] | None

    @property
    def tables(self) -> list[Tables]:
        return [observer for observer in self.observers if isinstance(observer, Tables)]

    async def keep(self) -> None:
        for each in self.tables:
            await each.keep()

    async def restore(self) -> None:
        for each in self.tables:
            await each.restore()

    async def make_fresh(self) -> None:
        opened, settings = self.app.opened, self.app.settings
        if opened.url.startswith("memory"):
            # Not through the app's own attributes, which the block around this check has replaced.
            await Holdfast.close(self.app)
            await Holdfast.open(self.app)
        else:
            await empty(opened.url, settings.db_schema)
        await self.restore()
        if self.setup is not None:
            await _called(self.setup)

    async def skip_numbers(self) -> None:
        for each in self.tables:
            await each.skip_numbers()

    async def observed(self, reading: Trace) -> dict[str, Rows]:
        collections: dict[str, Rows] = {}
        token = TRACE.set(reading)
        try:
            for observer in self.observers:
                for name, rows in observed_rows(await _called(observer)).items():
                    collections[name] = [*collections.get(name, ()), *rows]
        finally:
            TRACE.reset(token)
        return collections

    def unobserved(self, statements: Sequence[str], read: Sequence[str], ignored: Sequence[str]) -> list[Table]:
        """Tables that these statements write to and that no observer reads."""
        named = [Table.of(name) for each in self.tables for name in each.names]
        named += [Table.of(name) for name in ignored]
        return list(unobserved(written(statements), named, read, self.app.settings.db_schema))


@dataclass(frozen=True, slots=True)
class _Case:
    """One world: its end state, and the trace of the run that crashed. `died` is False for a run to the end."""

    state: EndState
    first: Trace
    died: bool


@dataclass(slots=True)
class _Check:
    world: _World
    job: NewJob
    handler: Handler
    ignore: tuple[str, ...]
    harmless: Callable[[Request], bool] | None
    timeout: timedelta
    most_steps: int
    hooks: Hooks = field(default_factory=Hooks)
    _traces: list[Trace] = field(default_factory=list)
    _read: list[str] = field(default_factory=list)
    """The SQL that observers ran."""
    _notes: dict[str, None] = field(default_factory=dict)

    async def run(self) -> IdempotencyReport:
        clean = await self._clean_case()
        self._refuse_to_look_away(clean.first.steps)
        missed = self.world.unobserved(clean.first.statements, self._read, self.ignore)
        await self.world.skip_numbers()
        again = await self._case(crash_after=0)
        volatile = volatile_columns(clean.state, again.state)
        ignored = volatile | self._named_columns(clean.state)
        problems = [Problem(None, clean.state.faults, crashed=False)] if clean.state.faults else []
        problems += self._problem(_BEFORE_THE_FIRST, clean.state, again.state, ignored)
        crashes, died = 1, True
        while died:
            if crashes > self.most_steps:
                raise InvalidInput(
                    f"most_steps: the handler of {self.job.kind!r} took {self.most_steps} steps and has not ended; "
                    f"check a smaller job, or raise the number"
                )
            case = await self._case(crash_after=crashes)
            died = case.died
            step = case.first.steps[-1] if died else None
            problems += self._problem(step, clean.state, case.state, ignored)
            crashes += 1
        names = sorted(f"{collection}.{column}" for collection, column in volatile)
        steps = tuple(again.first.steps)
        return IdempotencyReport(
            self.job.kind,
            steps,
            tuple(problems),
            tuple(names),
            crashes,
            notes=tuple(self._notes),
            unobserved=tuple(map(str, missed)),
        )

    def _refuse_to_look_away(self, steps: Sequence[Step]) -> None:
        """Refuse a check without observers if the handler writes rows: it would call any handler idempotent."""
        writes = [step for step in steps if _WRITES.search(step.text)]
        if writes and not self.world.observers:
            raise InvalidInput(
                f"{self.job.kind} writes to a database ({writes[0]}) and nothing observes it; give "
                f'observe=Tables(url, "table"), or a function that reads what counts'
            )

    def _problem(self, step: Step | None, clean: EndState, got: EndState, ignored: Collection[Column]) -> list[Problem]:
        found = differences(clean, got, ignored)
        return [Problem(step, tuple(found))] if found else []

    def _named_columns(self, state: EndState) -> set[Column]:
        """The columns in `ignore`: a plain name means all collections, and `collection.column` means one."""
        columns = {(name, column) for name, rows in state.collections.items() for row in rows for column in row}
        return {each for each in columns if each[1] in self.ignore or ".".join(each) in self.ignore}

    async def _clean_case(self) -> _Case:
        await self._begin()
        trace = Trace()
        attempt, failures = await self._attempt(trace)
        await write(self.world.app.opened, attempt)
        job = await self._job()
        if job.state is not JobState.SUCCEEDED:
            raised = failures.raised.get((job.id, attempt.job.attempt))
            raise InvalidInput(
                f"the handler of {self.job.kind!r} did not succeed without any crash, so there is nothing to compare "
                f"with: {_last_error(job) or job.state}"
            ) from raised
        return _Case(await self._end_state(job), trace, died=False)

    async def _case(self, crash_after: int) -> _Case:
        """Crash before the first step (0), after the given one, or before the finish if there are fewer steps."""
        await self._begin()
        opened = self.world.app.opened
        if crash_after == 0:
            await claimed(opened, self.job.id)
            trace, died = Trace(), True
        else:
            trace = Trace(crash_after)
            await self._attempt(trace)
            died = trace.has_crashed
        job = await self._job()
        if not job.state.is_final:
            await self._rescue()
            rerun = await self._rerun()
            trace = rerun if crash_after == 0 else trace
        return _Case(await self._end_state(await self._job()), trace, died)

    async def _begin(self) -> None:
        self._traces.clear()
        await self.world.make_fresh()
        await self.world.app.opened.store.enqueue([self.job])

    async def _attempt(self, trace: Trace) -> tuple[Attempted, RecordedFailures]:
        self._traces.append(trace)
        opened = self.world.app.opened
        failures = RecordedFailures(self.world.app.failures)
        context = copy_context()
        context.run(TRACE.set, trace)
        leased = await claimed(opened, self.job.id)
        handler = telling_its_end(self.handler, trace)
        try:
            async with asyncio.timeout(self.timeout.total_seconds()):
                attempt = await attempted(leased, handler, failures, opened.finish_in, self.hooks, context)
        except TimeoutError:
            raise InvalidInput(
                f"timeout: the handler of {self.job.kind!r} did not end within {self.timeout.total_seconds():g} s"
            ) from None
        await self._end(trace)
        return attempt, failures

    async def _end(self, trace: Trace) -> None:
        """End everything the run started. Note what a whole run leaves behind; a crash is expected to leave things."""
        ended = await all_ended(trace)
        connections, trace.connections = trace.connections, set()
        rolled_back = await roll_back(connections)
        if not ended and not trace.has_crashed:
            self._notes[_STILL_RUNNING] = None
        if rolled_back and not trace.has_crashed:
            self._notes[_LEFT_OPEN] = None

    async def _rescue(self) -> None:
        """Let the lease run out and the job become ready for its next attempt."""
        opened = self.world.app.opened
        await opened.clock.advance(LEASE + timedelta(seconds=1))
        deadline = time.monotonic() + _RESCUE_SECONDS
        while (await self._job()).state is JobState.RUNNING:
            if time.monotonic() > deadline:
                raise InvalidInput(f"the lease of {self.job.kind!r} is locked by a transaction that does not end")
            await opened.store.rescue(1)
            await asyncio.sleep(0)

    async def _rerun(self) -> Trace:
        """Run the job as often as the worker would, because a failed attempt may be followed by one that succeeds."""
        opened, first = self.world.app.opened, Trace()
        for number in range(_MOST_RERUNS):
            trace = first if number == 0 else Trace()
            attempt, _ = await self._attempt(trace)
            await write(opened, attempt)
            job = await self._job()
            if job.state.is_final or job.run_at is None:
                break
            await opened.clock.advance(max(timedelta(0), job.run_at - await opened.clock.now()))
        return first

    async def _job(self) -> Job:
        job = await self.world.app.opened.reader.get(self.job.id)
        if job is None:
            raise InvalidInput(f"the handler of {self.job.kind!r} removed its own job")
        return job

    async def _end_state(self, job: Job) -> EndState:
        jobs = await self.world.app.opened.reader.list(JobFilter(), MOST_JOBS)
        requests = [request for trace in self._traces for request in trace.requests]
        if self.harmless is not None:
            requests = [request for request in requests if not self.harmless(request)]
        called: dict[str, int] = {}
        for call in [call for trace in self._traces for call in trace.calls]:
            called[call] = called.get(call, 0) + 1
        reading = Trace()
        observed = await self.world.observed(reading)
        self._read += reading.statements
        collections = {**observed, JOBS: job_rows(each for each in jobs if each.id != job.id)}
        return EndState(
            ended=job.state,
            error=_last_error(job),
            collections={name: rows for name, rows in collections.items() if name not in self.ignore},
            sent=sent_counts(requests),
            called=called,
            faults=(*late_steps(step for trace in self._traces for step in trace.late), *reused_keys(requests)),
        )


def _observers(observe: Observer | Sequence[Observer]) -> tuple[Observer, ...]:
    given = (observe,) if callable(observe) else observe
    if not isinstance(given, Sequence) or not all(map(callable, given)):
        raise InvalidInput('observe: give a function or several, or tables as in Tables(url, "invoice")')
    return tuple(given)


def _names(parameter: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{parameter}: give a list of names, even for one")
    return tuple(names)


def _callable_or_none(parameter: str, given: Call | None) -> Call | None:
    if given is not None and not callable(given):
        raise InvalidInput(f"{parameter}: give a function")
    return given


def _last_error(job: Job) -> str | None:
    if not job.errors:
        return None
    error = job.errors[-1]
    return f"{error['type']}: {error['message']}"


async def _called(call: Callable[[], object]) -> object:
    """Call a blocking or async function. Do not use a thread, because many drivers' connections are tied to one."""
    result = call()
    return await result if inspect.isawaitable(result) else result
