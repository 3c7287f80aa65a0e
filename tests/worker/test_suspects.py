"""How a worker runs suspects: it empties itself, then runs each suspect alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers, make_handler
from holdfast.domain.job import Lease
from holdfast.domain.lifecycle import SUSPECT
from holdfast.store.contract import Fenced
from holdfast.store.memory.store import MemoryStore
from holdfast.types import WorkerSettings
from holdfast.worker import suspects
from holdfast.worker.worker import Worker
from tests.store_contract.steps import LEASE, START, job
from tests.worker.harness import codes, fast, final_job, until, working

SECONDS = LEASE.total_seconds()


class Gate:
    """Handlers wait at the gate; `inside` lists their jobs."""

    def __init__(self) -> None:
        self.inside: list[UUID] = []
        self.passed: list[UUID] = []
        self.most = 0
        self._open = asyncio.Event()

    async def handle(self, job: RunningJob[Any]) -> None:
        self.inside.append(job.id)
        self.most = max(self.most, len(self.inside))
        try:
            await self._open.wait()
        finally:
            self.inside.remove(job.id)
            self.passed.append(job.id)

    def open(self) -> None:
        self._open.set()


class Scene:
    """Workers on one store. Only the test makes their turns and moves their clock."""

    def __init__(self, workers: AsyncExitStack, now: list[float]) -> None:
        self.store = MemoryStore()
        self.gate = Gate()
        self._workers = workers
        self._now = now

    def passes(self, seconds: float) -> None:
        self._now[0] += seconds

    async def worker(self, **changes: object) -> Worker:
        settings: WorkerSettings = fast(**{"lease": LEASE, "most_ahead": 0, **changes})
        handlers = Handlers()
        handlers.add(make_handler("work", self.gate.handle, timeout=2.5 * LEASE, backoff="steps 0s"))
        worker = Worker(self.store, self._renewer, handlers, Failures(), settings)
        worker.start()
        self._workers.push_async_callback(worker.close, 0.0)
        # A new worker looks for suspects first; later it needs a reason to look.
        await worker.fill()
        return worker

    @asynccontextmanager
    async def _renewer(self) -> AsyncIterator[MemoryStore]:
        yield self.store

    async def enqueue(self, number: int) -> list[UUID]:
        return [answer.id for answer in await self.store.enqueue([job() for _ in range(number)])]

    async def suspects(self, number: int) -> list[UUID]:
        """Jobs in the state that two crashes would leave, without the time that crashes take."""
        ids = await self.enqueue(number)
        for id in ids:
            record = self.store._jobs[id]
            record.attempt = record.losses = record.suspicion = SUSPECT
        return ids

    async def busy(self, worker: Worker, number: int) -> list[UUID]:
        """Fill slots of the worker with new jobs, which wait at the gate."""
        ids = await self.enqueue(number)
        assert (await worker.fill()).claimed == number
        await until(lambda: set(ids) <= set(self.gate.inside), "its slots are busy")
        return ids

    async def look(self, worker: Worker) -> None:
        """Look as a busy worker does every second."""
        await worker._claimer._looking.answer(is_patient=True)

    def alone(self, id: UUID) -> int:
        return self.store._jobs[id].crash_limit


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    now = [1000.0]
    monkeypatch.setattr(suspects, "time", SimpleNamespace(monotonic=lambda: now[0]))
    async with AsyncExitStack() as workers:
        scene = Scene(workers, now)
        await scene.store.clock.freeze(START)
        yield scene
        scene.gate.open()


async def test_a_worker_empties_itself_for_a_suspect_and_claims_nothing_else_meanwhile(scene: Scene) -> None:
    worker = await scene.worker()
    await scene.busy(worker, 2)
    (suspect,) = await scene.suspects(1)
    await scene.enqueue(5)
    await scene.look(worker)
    for _ in range(3):
        assert (await worker.fill()).claimed == 0
    assert len(scene.gate.inside) == 2
    assert scene.store._jobs[suspect].state is JobState.RUNNING
    assert scene.alone(suspect) == 0
    scene.gate.open()
    await until(lambda: len(worker._slots.held) == 1, "it holds nothing but the suspect")
    assert (await worker.fill()).claimed == 1
    await until(lambda: suspect in scene.gate.passed, "the suspect has run")
    assert (await worker.fill()).claimed > 1


async def test_jobs_claimed_ahead_are_released_when_a_suspect_must_run(scene: Scene) -> None:
    worker = await scene.worker(concurrency=1)
    (running,) = await scene.busy(worker, 1)
    scene.store._jobs[running].attempt = 1
    ahead = (await scene.enqueue(1))[0]
    worker._slots.add([])
    await worker._claimer._ask(1)
    assert scene.store._jobs[ahead].state is JobState.RUNNING
    await scene.suspects(1)
    await scene.look(worker)
    await worker.fill()
    await until(lambda: scene.store._jobs[ahead].state is JobState.READY, "it was released")
    assert scene.store._jobs[ahead].attempt == 0


async def test_running_alone_is_recorded_before_the_handler_of_a_suspect_starts(scene: Scene) -> None:
    worker = await scene.worker()
    ids = await scene.suspects(3)
    await scene.look(worker)
    await worker.fill()
    await until(lambda: scene.gate.inside, "the first suspect runs")
    assert scene.gate.inside == ids[:1]
    assert [scene.alone(id) for id in ids] == [5, 0, 0]
    assert [scene.store._jobs[id].state for id in ids] == [JobState.RUNNING] * 3


async def test_suspects_of_one_crash_run_one_at_a_time(scene: Scene) -> None:
    worker = await scene.worker()
    ids = await scene.suspects(4)
    scene.gate.open()
    await scene.look(worker)

    async def all_ran() -> bool:
        await worker.fill()
        return len(scene.gate.passed) == 4

    await until(all_ran, "all have run")
    assert scene.gate.passed == ids
    assert scene.gate.most == 1


async def test_other_workers_keep_working_while_one_empties_itself(scene: Scene) -> None:
    first, second = await scene.worker(), await scene.worker()
    await scene.busy(first, 2)
    await scene.busy(second, 2)
    await scene.suspects(3)
    await scene.enqueue(2)
    for worker in (first, second):
        await scene.look(worker)
    assert (await first.fill()).claimed == 0
    assert (await second.fill()).claimed == 2
    await until(lambda: len(scene.gate.inside) == 6, "the second worker has filled its slots")


async def test_a_worker_that_cannot_empty_itself_releases_the_suspects_and_works_on(scene: Scene) -> None:
    worker = await scene.worker()
    await scene.busy(worker, 1)
    (suspect,) = await scene.suspects(1)
    await scene.enqueue(1)
    await scene.look(worker)
    assert (await worker.fill()).claimed == 0
    scene.passes(0.99 * SECONDS)
    assert (await worker.fill()).claimed == 0
    scene.passes(0.02 * SECONDS)
    assert (await worker.fill()).claimed == 1
    await until(lambda: scene.store._jobs[suspect].state is JobState.READY, "another worker may try")
    found = scene.store._jobs[suspect]
    assert (found.attempt, found.losses, found.suspicion) == (SUSPECT, SUSPECT, SUSPECT)


async def test_after_giving_up_a_worker_works_nine_times_as_long_and_then_waits_twice_as_long(
    scene: Scene,
) -> None:
    worker = await scene.worker()
    await scene.busy(worker, 1)
    (suspect,) = await scene.suspects(1)
    patience = []
    for _ in range(4):
        await scene.look(worker)
        await worker.fill()
        assert scene.store._jobs[suspect].state is JobState.RUNNING
        waited = 0
        while scene.store._jobs[suspect].state is JobState.RUNNING:
            scene.passes(SECONDS / 2)
            waited += 1
            await worker.fill()
            await asyncio.sleep(0.01)
        patience.append(waited / 2)
        await scene.look(worker)
        scene.passes(8.9 * SECONDS * patience[-1])
        await worker.fill()
        assert scene.store._jobs[suspect].state is JobState.READY
        scene.passes(0.2 * SECONDS * patience[-1])
    assert patience == [1, 2, 2.5, 2.5]


async def test_other_jobs_get_a_turn_after_running_suspects_for_one_lease(scene: Scene) -> None:
    worker = await scene.worker()
    ids = await scene.suspects(3)
    await scene.enqueue(1)
    await scene.look(worker)
    await worker.fill()
    await until(lambda: scene.gate.inside == ids[:1], "the first suspect runs")
    scene.passes(1.01 * SECONDS)
    scene.gate.open()
    await until(lambda: worker._slots.has_only_suspects, "the first suspect is done")
    assert (await worker.fill()).claimed == 1
    await until(lambda: worker.is_empty, "the others were released")
    assert [scene.store._jobs[id].state for id in ids] == [JobState.SUCCEEDED, JobState.READY, JobState.READY]
    await scene.enqueue(1)
    await scene.look(worker)
    scene.passes(0.9 * SECONDS)
    assert (await worker.fill()).claimed == 1
    await until(lambda: worker.is_empty, "its job is done")
    scene.passes(0.2 * SECONDS)
    await scene.enqueue(1)
    await worker.fill()
    assert scene.store._jobs[ids[1]].state is JobState.RUNNING


async def test_a_stopped_worker_releases_its_suspects(scene: Scene) -> None:
    worker = await scene.worker()
    await scene.busy(worker, 1)
    ids = await scene.suspects(2)
    await scene.look(worker)
    await worker.fill()
    scene.gate.open()
    await worker.close(5.0)
    assert [scene.store._jobs[id].state for id in ids] == [JobState.READY] * 2
    assert [scene.store._jobs[id].attempt for id in ids] == [SUSPECT] * 2


class Forgetful(MemoryStore):
    """Refuses the first requests to record that a job runs alone."""

    refusals = 2

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("away")
        return await super().run_alone(lease, crash_limit)


async def test_a_suspect_does_not_start_before_running_alone_is_recorded(scene: Scene) -> None:
    scene.store = Forgetful()
    await scene.store.clock.freeze(START)
    worker = await scene.worker()
    await scene.suspects(1)
    await scene.look(worker)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await worker.fill()
        assert scene.gate.inside == []
    await worker.fill()
    await until(lambda: len(scene.gate.inside) == 1, "it runs")


class Absolving(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.absolved: list[Lease] = []

    async def absolve(self, leases: Sequence[Lease]) -> None:
        self.absolved += leases
        await super().absolve(leases)


async def test_a_living_worker_reports_every_lost_lease(scene: Scene) -> None:
    """For a running job and for a job that waits for its slot."""
    store = scene.store = Absolving()
    await store.clock.freeze(START)
    worker = await scene.worker(concurrency=1, lease=timedelta(seconds=3))
    ids = await scene.busy(worker, 1)
    ids += await scene.enqueue(1)
    await worker._claimer._ask(1)
    await store.clock.advance(LEASE)
    assert len(await store.rescue(10)) == 2
    assert [store._jobs[id].suspicion for id in ids] == [1, 1]
    await until(lambda: len(store.absolved) == 2, "both losses were reported")
    assert [store._jobs[id].suspicion for id in ids] == [0, 0]


async def test_shutdowns_do_not_use_up_attempts() -> None:
    """After four deploys, a job that may fail once is still at its first attempt."""
    app, let_go = Holdfast("memory:"), asyncio.Event()
    starts: list[int] = []

    @app.handler("long", attempts=2)
    async def long(job: RunningJob[Any]) -> None:
        starts.append(job.attempt)
        await let_go.wait()

    async with app:
        id = (await app.enqueue("long")).id
        for deploys in range(1, 5):
            async with working(app, fast(shutdown=timedelta(0))):
                await until(lambda deploys=deploys: len(starts) == deploys, "it has started")  # type: ignore[misc]
        let_go.set()
        async with working(app):
            job = await final_job(app, id)
    assert starts == [1] * 5
    assert (job.state, job.attempt, codes(job)) == (JobState.SUCCEEDED, 1, ["INTERRUPTED"] * 4)
