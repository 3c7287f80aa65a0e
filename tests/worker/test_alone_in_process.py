"""A suspect runs alone in its process, which may have more workers, inline runners and threads that go on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers, make_handler
from holdfast.domain.lifecycle import SUSPECT
from holdfast.domain.shared_process import SharedProcess
from holdfast.store.memory.jobs import Record
from holdfast.store.memory.store import MemoryStore
from holdfast.worker import suspects
from holdfast.worker.worker import Worker
from tests.store_contract.steps import LEASE, START, job
from tests.worker.harness import fast, final_job, until, working

SECONDS = LEASE.total_seconds()


class Queue:
    """A worker with its own store, as a mapping of rows has. Its handlers wait until the test lets them go."""

    def __init__(self, process: SharedProcess, timeout: timedelta) -> None:
        self.store = MemoryStore()
        self.inside: list[UUID] = []
        self.gate = asyncio.Event()
        handlers = Handlers()
        handlers.add(make_handler("work", self._handle, timeout=timeout))
        settings = fast(lease=LEASE, most_ahead=0)
        self.worker = Worker(self.store, self._renewer, handlers, Failures(), settings, process=process)

    async def _handle(self, job: RunningJob[Any]) -> None:
        self.inside.append(job.id)
        try:
            await self.gate.wait()
        finally:
            self.inside.remove(job.id)

    @asynccontextmanager
    async def _renewer(self) -> AsyncIterator[MemoryStore]:
        yield self.store

    async def add(self, number: int) -> list[UUID]:
        return [answer.id for answer in await self.store.enqueue([job() for _ in range(number)])]

    async def add_suspects(self, number: int) -> list[UUID]:
        ids = await self.add(number)
        for id in ids:
            _make_suspect(self.store._jobs[id])
        return ids

    async def look(self) -> None:
        await self.worker._claimer._looking.answer(is_patient=True)

    def state(self, id: UUID) -> JobState:
        return self.store._jobs[id].state

    def is_alone(self, id: UUID) -> bool:
        return self.store._jobs[id].crash_limit > 0


class Two:
    def __init__(self, now: list[float]) -> None:
        process = SharedProcess()
        self.first, self.second = Queue(process, 2 * LEASE), Queue(process, 4 * LEASE)
        self._now = now

    def passes(self, seconds: float) -> None:
        self._now[0] += seconds


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    now = [1000.0]
    monkeypatch.setattr(suspects, "time", SimpleNamespace(monotonic=lambda: now[0]))
    async with AsyncExitStack() as closing:
        two = Two(now)
        for each in (two.first, two.second):
            await each.store.clock.freeze(START)
            each.worker.start()
            closing.push_async_callback(each.worker.close, 0.0)
            await each.worker.fill()
        yield two
        two.first.gate.set()
        two.second.gate.set()


async def test_a_suspect_waits_for_the_jobs_of_the_other_workers_in_its_process(two: Two) -> None:
    (other,) = await two.second.add(1)
    await two.second.worker.fill()
    await until(lambda: two.second.inside == [other], "the other worker runs a job")
    (suspect,) = await two.first.add_suspects(1)
    await two.first.look()
    for _ in range(3):
        await two.first.worker.fill()
    assert two.first.state(suspect) is JobState.RUNNING
    assert (two.first.inside, two.first.is_alone(suspect)) == ([], False)
    two.second.gate.set()
    await until(lambda: two.second.worker.is_empty, "the other job has ended")
    await two.first.worker.fill()
    await until(lambda: two.first.inside == [suspect], "the suspect runs")
    assert two.first.is_alone(suspect)


async def test_while_a_suspect_has_the_process_the_other_workers_claim_nothing(two: Two) -> None:
    (suspect,) = await two.first.add_suspects(1)
    await two.first.look()
    await two.first.worker.fill()
    await until(lambda: two.first.inside == [suspect], "the suspect runs")
    (other,) = await two.second.add(1)
    two.passes(2 * SECONDS)
    for _ in range(3):
        assert (await two.second.worker.fill()).claimed == 0
    assert two.second.state(other) is JobState.READY
    two.first.gate.set()
    await until(lambda: two.first.worker.is_empty, "the suspect has ended")
    await two.first.worker.fill()
    assert two.second.worker.may_claim, "it does not wait for its next poll"
    assert (await two.second.worker.fill()).claimed == 1


async def test_the_other_workers_give_back_what_they_have_not_started(two: Two) -> None:
    (ahead,) = await two.second.add(1)
    await two.second.worker._claimer._ask(1)
    assert two.second.state(ahead) is JobState.RUNNING
    await two.first.add_suspects(1)
    await two.first.look()
    await two.first.worker.fill()
    await until(lambda: two.second.state(ahead) is JobState.READY, "it was released")
    assert two.second.inside == []


async def test_a_worker_waits_as_long_as_the_longest_timeout_in_its_process(two: Two) -> None:
    await two.second.add(1)
    await two.second.worker.fill()
    (suspect,) = await two.first.add_suspects(1)
    patience = []
    for _ in range(4):
        await two.first.look()
        await two.first.worker.fill()
        waited = 0
        while two.first.state(suspect) is JobState.RUNNING:
            two.passes(SECONDS / 2)
            waited += 1
            await two.first.worker.fill()
            await asyncio.sleep(0.01)
        patience.append(waited / 2)
        two.passes(9.1 * SECONDS * patience[-1])
    assert patience == [1, 2, 4, 4]
    assert not two.first.is_alone(suspect)


async def _first_had_its_turn(two: Two) -> list[UUID]:
    """Let the first worker run one of its two suspects, and return those of the second worker, which are due too."""
    firsts, seconds = await two.first.add_suspects(2), await two.second.add_suspects(1)
    for each in (two.first, two.second):
        await each.look()
        await each.worker.fill()
    await until(lambda: two.first.inside == firsts[:1], "the first suspect runs")
    two.passes(1.1 * SECONDS)
    two.first.gate.set()
    await until(lambda: two.first.worker._slots.has_only_suspects, "it has ended")
    two.first.gate.clear()
    return seconds


async def test_after_suspects_of_one_worker_it_is_the_turn_of_other_jobs_in_all_workers(two: Two) -> None:
    seconds = await _first_had_its_turn(two)
    (job,) = await two.first.add(1)
    assert (await two.first.worker.fill()).claimed == 1
    await until(lambda: two.first.inside == [job], "another job has its turn")
    two.passes(0.9 * SECONDS)
    await two.second.worker.fill()
    assert two.second.state(seconds[0]) is JobState.READY
    two.passes(0.1 * SECONDS)
    await two.second.worker.fill()
    assert two.second.state(seconds[0]) is JobState.RUNNING


async def test_workers_of_a_process_take_turns_with_their_suspects(two: Two) -> None:
    seconds = await _first_had_its_turn(two)
    await two.first.worker.fill()
    await until(lambda: two.first.worker.is_empty, "its other suspect was released")
    await two.first.look()
    assert (await two.first.worker.fill()).again_in < 1
    await two.second.worker.fill()
    await until(lambda: two.second.inside == seconds, "it is the other worker's turn")


def _make_suspect(record: Record) -> None:
    record.attempt = record.losses = record.suspicion = SUSPECT


def _store(app: Holdfast) -> MemoryStore:
    store = app.opened.store
    assert isinstance(store, MemoryStore)
    return store


async def _add_suspect(app: Holdfast) -> UUID:
    id = (await app.enqueue("suspect")).id
    _make_suspect(_store(app)._jobs[id])
    return id


async def test_an_inline_runner_does_not_begin_while_a_suspect_runs() -> None:
    """A new worker begins with suspects, so an inline runner that kills its process kills no suspect there."""
    app, story = Holdfast("memory:"), list[str]()

    @app.runner("sweep", "every tick")
    async def sweep() -> None:
        story.append("sweep")

    @app.handler("suspect")
    async def suspect(job: RunningJob[Any]) -> None:
        story.append("suspect began")
        # Several ticks pass, each of which could begin the runner.
        await asyncio.sleep(0.3)
        story.append("suspect ended")

    async with app:
        id = await _add_suspect(app)
        async with working(app):
            await final_job(app, id)
            await until(lambda: "sweep" in story, "the runner has its turn")
    assert story[:3] == ["suspect began", "suspect ended", "sweep"]


async def test_a_suspect_waits_for_an_inline_runner() -> None:
    app, gate, story = Holdfast("memory:"), asyncio.Event(), list[str]()

    @app.runner("sweep", "every tick")
    async def sweep() -> None:
        story.append("sweep began")
        await gate.wait()
        story.append("sweep ended")

    @app.handler("suspect")
    async def suspect(job: RunningJob[Any]) -> None:
        story.append("suspect")

    async with app, working(app):
        await until(lambda: story, "the runner has begun")
        id = await _add_suspect(app)
        record = _store(app)._jobs[id]
        await until(lambda: record.state is JobState.RUNNING, "the suspect is claimed")
        assert record.crash_limit == 0
        gate.set()
        await final_job(app, id)
    assert story[:3] == ["sweep began", "sweep ended", "suspect"]


async def test_a_suspect_waits_for_a_thread_that_goes_on_after_its_lease_was_lost() -> None:
    app, gate, story = Holdfast("memory:"), threading.Event(), list[str]()

    @app.handler("runaway", attempts=1)
    def runaway(job: RunningJob[Any]) -> None:
        if not story:
            story.append("thread began")
            assert gate.wait(60)
            story.append("thread ended")

    @app.handler("suspect")
    async def suspect(job: RunningJob[Any]) -> None:
        story.append("suspect")

    async with app, working(app, fast(lease=timedelta(seconds=3))) as process:
        lost = (await app.enqueue("runaway")).id
        await until(lambda: story, "the thread runs")
        store = _store(app)
        del store._jobs[lost]
        await until(lambda: process.tally["lost"], "its lease was lost")
        id = await _add_suspect(app)
        record = store._jobs[id]
        await until(lambda: record.state is JobState.RUNNING, "the suspect is claimed")
        assert record.crash_limit == 0
        gate.set()
        await final_job(app, id)
    assert story == ["thread began", "thread ended", "suspect"]
