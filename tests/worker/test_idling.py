"""An idle worker sends as few requests as possible, but misses no work."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Holdfast, RunningJob
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers, make_handler
from holdfast.domain.job import LeasedJob
from holdfast.store.contract import ClaimRequest, Looked, Renewal, Renewed, Shard
from holdfast.store.memory.store import MemoryStore
from holdfast.worker import lease_keeper, looking
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.worker import Worker
from tests.store_contract.steps import LEASE, START, job, wants
from tests.worker.harness import ReleasesNothing, fast, until, working

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every look appear instant: on a busy machine a slow look would postpone the next one."""
    monkeypatch.setattr(looking, "time", SimpleNamespace(monotonic=lambda: 0.0))


class Asked(MemoryStore):
    """Records the requests it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[str] = []

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        self.questions.append("claim suspects" if request.suspects else "claim")
        return await super().claim(request)

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        self.questions.append("look")
        return await super().look(queues, kinds, shard=shard)


class NoRenewals(ReleasesNothing):
    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        raise AssertionError("no job here lives long enough to be renewed")


@asynccontextmanager
async def no_renewals() -> AsyncIterator[NoRenewals]:
    yield NoRenewals()


@asynccontextmanager
async def worker_on(store: Asked, settings: WorkerSettings, *handlers: Any) -> AsyncIterator[Worker]:  # noqa: ANN401
    """A worker whose slots only the test fills. Like every worker, it has first looked for suspects."""
    known = Handlers()
    for handler in handlers:
        known.add(handler)
    worker = Worker(store, no_renewals, known, Failures(), settings)
    worker.start()
    try:
        await worker.fill()
        store.questions.clear()
        yield worker
    finally:
        await worker.close(0)


async def quick(job: RunningJob[Any]) -> None: ...


async def test_a_poll_looks_once_and_claims_only_due_jobs() -> None:
    store = Asked()
    async with worker_on(store, fast(), make_handler("work", quick)) as worker:
        turn = await worker.fill(looks_first=True)
        assert (turn.claimed, turn.is_idle, store.questions) == (0, True, ["look"])

        await store.enqueue([job(delay=HOUR)])
        turn = await worker.fill(looks_first=True)
        assert (turn.claimed, turn.is_idle, store.questions) == (0, True, ["look"] * 2)
        assert 0 < turn.again_in <= HOUR.total_seconds()

        await store.enqueue([job()])
        turn = await worker.fill(looks_first=True)
        assert (turn.claimed, store.questions) == (1, ["look"] * 3 + ["claim"])


async def test_a_turn_after_a_wake_up_claims_without_looking_first() -> None:
    store = Asked()
    async with worker_on(store, fast(), make_handler("work", quick)) as worker:
        await worker.fill()
        assert store.questions == ["claim", "look"]


async def test_a_poll_without_a_free_slot_or_beyond_the_limit_sends_no_request() -> None:
    store, let_go = Asked(), asyncio.Event()

    async def slow(job: RunningJob[Any]) -> None:
        await let_go.wait()

    async with worker_on(store, fast(concurrency=1), make_handler("work", slow)) as worker:
        await worker.fill(0, looks_first=True)
        assert store.questions == []
        await store.enqueue([job(), job()])
        assert (await worker.fill()).claimed == 1
        store.questions.clear()
        turn = await worker.fill(looks_first=True)
        assert (turn.claimed, turn.is_idle, store.questions) == (0, False, [])
        let_go.set()
        await until(lambda: worker.is_empty, "its slot is free")
        assert (await worker.fill(looks_first=True)).claimed == 1
        await until(lambda: worker.is_empty, "both are done")


async def test_a_poll_leaves_a_due_job_of_a_kind_at_its_limit_until_a_slot_is_free() -> None:
    store, started, let_go = Asked(), asyncio.Event(), asyncio.Event()

    async def slow(job: RunningJob[Any]) -> None:
        started.set()
        await let_go.wait()

    async with worker_on(store, fast(), make_handler("work", slow, limit=1), make_handler("other", quick)) as worker:
        await store.enqueue([job(), job()])
        assert (await worker.fill()).claimed == 1
        await asyncio.wait_for(started.wait(), 10)
        store.questions.clear()
        turn = await worker.fill(looks_first=True)
        assert (turn.claimed, turn.again_in, turn.is_idle) == (0, float("inf"), True)
        assert store.questions == ["look"]
        let_go.set()
        await until(lambda: worker.is_empty, "the first is done")
        assert worker.may_claim
        assert (await worker.fill()).claimed == 1
        await until(lambda: worker.is_empty, "both are done")


async def test_a_poll_finds_a_suspect_when_nothing_else_is_due() -> None:
    store = Asked()
    async with worker_on(store, fast(), make_handler("work", quick)) as worker:
        await store.clock.freeze(START)
        await store.enqueue([job()])
        for _ in range(2):
            await store.claim(wants())
            await store.clock.advance(LEASE)
            await store.rescue(10)
        store.questions.clear()
        assert (await worker.fill(looks_first=True)).claimed == 1
        assert store.questions == ["look", "claim suspects"]
        await until(lambda: worker.is_empty, "it has run")


@pytest.mark.parametrize("polls", [1.5, 2.5])
async def test_a_job_due_again_before_the_longest_wait_ends_is_claimed_when_due(polls: float) -> None:
    store, poll = Asked(), timedelta(milliseconds=40)

    async def fails(job: RunningJob[Any]) -> None:
        raise ValueError

    handler = make_handler("work", fails, backoff=f"steps {poll.total_seconds() * 1000 * polls:g}ms", attempts=2)
    async with worker_on(store, fast(poll=poll), handler) as worker:
        await store.enqueue([job()])
        assert (await worker.fill()).claimed == 1
        await until(lambda: worker.may_claim, "it is due again")
        assert (await worker.fill()).claimed == 1
        await until(lambda: worker.is_empty, "it has failed")


async def test_deadlines_are_not_watched_while_no_job_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    watch = Worker._watch_deadlines

    async def noted(self: Worker) -> float | None:
        waits.append(await watch(self))
        return waits[-1]

    monkeypatch.setattr(Worker, "_watch_deadlines", noted)
    app = Holdfast("memory:")

    @app.handler("endless", timeout="100ms", attempts=1)
    async def endless(job: RunningJob[Any]) -> None:
        await asyncio.Event().wait()

    async with app, working(app) as process:
        for failed in (1, 2):
            await until(lambda: waits and waits[-1] is None, "it rests")
            steps = len(waits)
            await app.enqueue("endless")
            await until(lambda failed=failed: process.tally["exhaust"] == failed, "it timed out")  # type: ignore[misc]
            assert None not in waits[steps:-1], "it watched while there was something to watch"
            assert len(waits) > steps


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "_PROGRESS_SECONDS", HOUR.total_seconds())


@pytest.mark.usefixtures("long_pauses")
def test_stop_ends_a_keeper_during_a_long_pause() -> None:
    looks = threading.Semaphore(0)

    def nothing_held() -> list[Any]:
        looks.release()
        return []

    keeper = LeaseKeeper(nothing_held, no_renewals, default_lease=12 * HOUR.total_seconds())
    keeper.start()
    assert all(looks.acquire(timeout=10) for _ in range(2)), "both of its tasks have looked and are now pausing"
    keeper.stop()
    keeper.join(10)
    assert not keeper.is_alive


@pytest.mark.usefixtures("long_pauses")
def test_a_keeper_stopped_before_its_start_ends_at_once() -> None:
    keeper = LeaseKeeper(list, no_renewals, default_lease=12 * HOUR.total_seconds())
    keeper.stop()
    keeper.start()
    keeper.join(10)
    assert not keeper.is_alive
    keeper.stop()


async def test_a_kind_at_its_limit_does_not_hide_when_another_comes_due() -> None:
    store, started, let_go = Asked(), asyncio.Event(), asyncio.Event()

    async def slow(job: RunningJob[Any]) -> None:
        started.set()
        await let_go.wait()

    async with worker_on(store, fast(), make_handler("work", slow, limit=1), make_handler("other", quick)) as worker:
        await store.enqueue([job(), job(), job(kind="other", delay=HOUR)])
        assert (await worker.fill()).claimed == 1
        await asyncio.wait_for(started.wait(), 10)
        turn = await worker.fill(looks_first=True)
        assert 0 < turn.again_in <= HOUR.total_seconds()
        let_go.set()
        await until(lambda: worker.is_empty, "the first is done")
        assert (await worker.fill()).claimed == 1
        await until(lambda: worker.is_empty, "both are done")


class WithUnclaimableSuspect(Asked):
    """Its row is locked."""

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        await super().look(queues, kinds, shard=shard)
        return Looked(suspect_due_in=timedelta(0))


async def test_an_unclaimable_suspect_does_not_keep_a_worker_busy() -> None:
    store = WithUnclaimableSuspect()
    async with worker_on(store, fast(), make_handler("work", quick)) as worker:
        turns = [await worker.fill(looks_first=True) for _ in range(3)]
        assert turns[-1].is_idle
        assert store.questions.count("claim suspects") <= 1


class SlowToAnswer(Asked):
    """Answers a look only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        looked = await super().look(queues, kinds, shard=shard)
        await self.may_answer.wait()
        return looked


async def test_a_kind_that_gets_room_again_during_a_look_is_claimed() -> None:
    store, let_go = SlowToAnswer(), asyncio.Event()

    async def slow(job: RunningJob[Any]) -> None:
        await let_go.wait()

    async with worker_on(store, fast(), make_handler("work", slow, limit=1), make_handler("other", quick)) as worker:
        await store.enqueue([job(), job()])
        assert (await worker.fill()).claimed == 1
        store.questions.clear()
        store.may_answer.clear()
        turn = asyncio.create_task(worker.fill(to_end=True))
        await until(lambda: "look" in store.questions, "it looks, but not for the kind that is full")
        let_go.set()
        await until(lambda: worker.is_empty, "the first is done")
        store.may_answer.set()
        assert (await turn).claimed == 0
        assert worker.may_claim
        assert (await worker.fill()).claimed == 1
        await until(lambda: worker.is_empty, "both are done")
