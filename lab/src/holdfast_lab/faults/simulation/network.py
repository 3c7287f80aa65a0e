"""A process's route to the store. A request travels on its own: it may take effect while its sender is paused or dead.

The request may be lost before it takes effect, or its answer afterwards. It may be slow, or take effect after its
sender was told that it failed. The oracle learns of each of the store's answers when it takes effect.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import UUID

from holdfast.domain.errors import ConnectionLost
from holdfast.domain.job import Lease, LeasedJob, NewJob
from holdfast.domain.json_text import Json, decode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.scheduling.job_schedules import OCCURRENCE_HEADER
from holdfast.store.claims import Claims, Taken
from holdfast.store.contract import (
    ClaimRequest,
    Ended,
    Fenced,
    Finish,
    Renewal,
    Renewed,
    Renewer,
    Rescued,
    Shard,
)
from holdfast.store.floors import First, Starts
from holdfast.store.schedules import DueSchedules, NewRun, NewSchedule, RunStore, Schedule, ScheduleStore
from holdfast_lab.faults.simulation.witness import Cut

if TYPE_CHECKING:
    from holdfast_lab.faults.simulation.world import Process, World

Answer = TypeVar("Answer")


def done(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of a method of the memory store, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(Answer, end.value)
    raise RuntimeError("a verb of the memory store waited")


class _Fate(NamedTuple):
    """The fate of one request, in seconds from now. `effect_in` None: it never takes effect."""

    effect_in: float | None
    known_in: float
    fails: bool = False
    is_slow: bool = False


class _Network:
    """Carries the requests of one process."""

    def __init__(self, world: "World", process: "Process") -> None:
        self._world = world
        self._process = process
        self._witness = process.witness
        self._oracle = world.oracle

    async def ask(self, what: str, effect: Callable[[], Answer]) -> Answer:
        machine = self._world.machine
        fate = self._fate()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if fate.fails:
            told = "lost" if fate.effect_in is None else "late" if fate.effect_in > fate.known_in else "unanswered"
            self._oracle.note(self._witness.name, "", f"request {told}: {what}")
            self._is_cut(what, max(fate.known_in, fate.effect_in or 0.0))
            if fate.effect_in is not None:
                machine.after(fate.effect_in, self._take_effect_unheard, what, effect)
            machine.after(fate.known_in, _refuse, answer, what)
        else:
            if fate.is_slow:
                self._is_cut(what, (fate.effect_in or 0.0) + fate.known_in)
            machine.after(fate.effect_in or 0.0, self._take_effect, effect, answer, fate)
        return await answer

    def _is_cut(self, what: str, seconds: float) -> None:
        now = self._world.machine.now
        self._witness.cuts.append(Cut(what, now, now + seconds))

    def _take_effect_unheard(self, what: str, effect: Callable[[], object]) -> None:
        """Note a cut again at this moment: jobs that a claim leases now have no worker, because its sender gave up."""
        self._is_cut(what, 0.0)
        effect()

    def _take_effect(self, effect: Callable[[], Answer], answer: "asyncio.Future[Answer]", fate: _Fate) -> None:
        self._world.machine.after(fate.known_in, tell, answer, effect())
        if self._world.random.random() < self._world.plan.weather.pause and self._is_exposed():
            self._world.pause(self._process)

    def _is_exposed(self) -> bool:
        return self._process.is_alive and not self._world.is_calm

    def _fate(self) -> _Fate:
        random, weather = self._world.random, self._world.plan.weather
        effect_in, known_in = 0.0001 + random.random() * 0.002, 0.0001 + random.random() * 0.002
        chance = random.random()
        if chance >= weather.cut + weather.slow and not self._process.is_cut_off:
            return _Fate(effect_in, known_in)
        if not self._is_exposed():
            return _Fate(effect_in, known_in)
        lease = self._world.plan.settings.lease.total_seconds()
        long = random.uniform(0.05, 1.2) * lease
        if self._process.is_cut_off:
            # Either refused at once or swallowed.
            return _Fate(None, known_in if random.random() < 0.5 else long, fails=True)
        if chance >= weather.cut:
            return _Fate(long * random.random(), long * random.random(), is_slow=True)
        match random.randrange(3):
            case 0:
                return _Fate(None, random.choice((known_in, long)), fails=True)
            case 1:
                return _Fate(effect_in, effect_in + random.choice((known_in, long)), fails=True)
            case _:
                return _Fate(effect_in + long, random.choice((known_in, long / 2)), fails=True)


def tell(answer: "asyncio.Future[Answer]", value: Answer) -> None:
    """Set the result, unless the waiting task has been interrupted since."""
    if not answer.done():
        answer.set_result(value)


def _refuse(answer: "asyncio.Future[Any]", what: str) -> None:
    if not answer.done():
        answer.set_exception(ConnectionLost(f"{what}: the connection was lost"))


class Link(Claims):
    """The store as one process sees it, with the methods that a worker calls."""

    def __init__(self, world: "World", process: "Process") -> None:
        self._world = world
        self._witness = process.witness
        self._oracle = world.oracle
        self._store = world.store
        self._ask = _Network(world, process).ask
        self.schedules = cast(ScheduleStore, _ScheduleLink(world, process))
        self.runs = cast(RunStore, _RunLink(world, process))

    def renewer(self) -> AbstractAsyncContextManager[Renewer]:
        return _Connection(self)

    async def connect(self) -> None:
        await self._ask("connect", lambda: None)

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        answer = await super().claim(request)
        self._oracle.heard(answer)
        return answer

    async def claim_from(self, request: ClaimRequest, starts: Starts, claim: UUID) -> Taken:
        def effect() -> Taken:
            taken = done(self._store.claim_from(request, starts, claim))
            self._oracle.claimed(
                taken.jobs,
                self._witness,
                lambda kind: request.kinds[kind].lease.total_seconds(),
                suspects=request.suspects,
            )
            return taken

        return await self._ask("claim of suspects" if request.suspects else "claim", effect)

    async def firsts(self, queues: Sequence[str], shard: Shard | None) -> tuple[list[First], datetime]:
        return await self._ask("look", lambda: done(self._store.firsts(queues, shard)))

    async def leases_of(self, holder: UUID) -> list[Lease]:
        return await self._ask("leases", lambda: done(self._store.leases_of(holder)))

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        def effect() -> list[Renewed]:
            renewed = done(self._store.renew(renewals))
            self._oracle.renewed(renewals, renewed, self._witness)
            return renewed

        return await self._ask("renew", effect)

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        def effect() -> list[Fenced]:
            answers = done(self._store.finish(finishes))
            for finish, answer in zip(finishes, answers, strict=True):
                self._oracle.finished(finish, answer, self._witness)
            return answers

        try:
            return await self._ask("finish", effect)
        finally:
            if any(finish.transition.move is Move.RELEASE for finish in finishes):
                self.forget_floors()

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        return await self.finish([Finish(lease, Transition(Move.RELEASE)) for lease in leases])

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        def effect() -> Fenced:
            answer = done(self._store.run_alone(lease, crash_limit))
            self._oracle.ran_alone(lease, crash_limit, answer, self._witness)
            return answer

        return await self._ask("run alone", effect)

    async def absolve(self, leases: Sequence[Lease]) -> None:
        def effect() -> None:
            done(self._store.absolve(leases))
            self._oracle.absolved(leases, self._witness)

        await self._ask("absolve", effect)

    async def now(self) -> datetime:
        """Never fails: a rescue asks for the time first, and the rescue's own request is subject to faults."""
        return await self._store.now()

    async def rescue(self, limit: int, ended: Ended | None = None) -> list[Rescued]:
        def effect() -> list[Rescued]:
            rescued = done(self._store.rescue(limit, ended))
            self._oracle.rescued(rescued, self._witness)
            return rescued

        rescued = await self._ask("rescue", effect)
        if rescued:
            self.forget_floors()
        return rescued


class _Connection(AbstractAsyncContextManager[Renewer]):
    """The lease keeper's own connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def __aenter__(self) -> Renewer:
        await self._link.connect()
        return self._link

    async def __aexit__(self, *_error: object) -> None:
        return None


class _ScheduleLink:
    """The schedules, with the methods that a runner of job schedules calls."""

    def __init__(self, world: "World", process: "Process") -> None:
        self._world = world
        self._witness = process.witness
        self._schedules = world.schedules
        self._ask = _Network(world, process).ask

    async def declare(self, schedules: Sequence[NewSchedule]) -> None:
        await self._ask("declare schedules", lambda: self._world.declare(schedules))

    async def now(self) -> datetime:
        return await self._ask("now", lambda: done(self._schedules.now()))

    async def due(self, declared: Sequence[str]) -> DueSchedules:
        return await self._ask("due schedules", lambda: done(self._schedules.due(declared)))

    async def list(self) -> list[Schedule]:
        return await self._ask("list schedules", lambda: done(self._schedules.list()))

    async def put_back(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        return await self._ask("put back a schedule", lambda: done(self._schedules.put_back(schedule, next_occurrence)))

    async def advance(
        self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
    ) -> bool:
        # Use the simulation's own ids: ordinary job ids begin with the real time and would differ in every replay.
        named = [replace(job, id=self._world.new_id()) for job in jobs]

        def effect() -> bool:
            has_won = done(self._schedules.advance(schedule, next_occurrence, named, run, result))
            if has_won:
                for job in named:
                    self._world.taken_by_schedule(job, self._witness.name)
                occurrences = [
                    datetime.fromisoformat(decode(job.headers or Json("{}"))[OCCURRENCE_HEADER]) for job in named
                ]
                self._world.oracle.occurrences_taken(schedule.name, occurrences, self._witness.name)
            return has_won

        return await self._ask("take occurrences", effect)


class _RunLink:
    def __init__(self, world: "World", process: "Process") -> None:
        self._runs = world.runs
        self._ask = _Network(world, process).ask

    async def record(self, run: NewRun, started_ago: timedelta, result: Json | None, error: Json | None) -> None:
        await self._ask("record run", lambda: done(self._runs.record(run, started_ago, result, error)))
