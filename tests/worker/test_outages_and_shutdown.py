"""A worker on a store that fails in every way, and how it ends. The store is the memory store with faults put in."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, Permanent, Retryable, RunningJob
from holdfast.domain.errors import (
    AccessRefused,
    ConnectionLost,
    InternalError,
    InvalidInput,
    SchemaMismatch,
    StoreUnavailable,
    Unstorable,
)
from holdfast.domain.job import Lease, LeasedJob
from holdfast.domain.lifecycle import Transition
from holdfast.domain.retry import exponential
from holdfast.store.contract import ClaimRequest, Ended, Fenced, Finish, Looked, Renewal, Renewed, Renewer, Rescued
from holdfast.store.memory.store import MemoryStore
from holdfast.types import Process, WorkerSettings
from tests.worker.harness import ReleasesNothing, codes, drained, errors, fast, final_job, until, working

Connect = Callable[[], AbstractAsyncContextManager[Renewer]]


class FaultyStore(MemoryStore):
    """Raises what a test puts into `raises`, once each, and waits where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.raises: dict[str, list[BaseException]] = {}
        self.hangs: dict[str, asyncio.Event] = {}
        self.hangs_once: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []
        self.poison: UUID | None = None
        self.poisonous: Callable[[Transition], bool] = lambda transition: False

    async def _meet(self, verb: str) -> None:
        self.asked.append(verb)
        if self.raises.get(verb):
            raise self.raises[verb].pop(0)
        if verb in self.hangs:
            await self.hangs[verb].wait()
        if verb in self.hangs_once:
            await self.hangs_once.pop(verb).wait()

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        jobs = await super().claim(request)
        await self._meet("claim")
        return jobs

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        await self._meet("finish")
        if any(each.lease.id == self.poison and self.poisonous(each.transition) for each in finishes):
            raise Unstorable("refused: a secret", "no such character")
        return await super().finish(finishes)

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        await self._meet("release")
        return await super().release(leases)

    async def rescue(self, limit: int, ended: Ended | None = None) -> list[Rescued]:
        await self._meet("rescue")
        return await super().rescue(limit, ended)

    async def look(self, *arguments: Any, **options: Any) -> Looked:  # noqa: ANN401
        await self._meet("look")
        return await super().look(*arguments, **options)


class FaultyApp(Holdfast):
    """An app whose worker meets the faults; what the test itself asks for does not."""

    def __init__(self, connect: Connect | None = None) -> None:
        super().__init__("memory:")
        self.store = FaultyStore()
        self._connect = connect

    async def open(self) -> None:
        await super().open()
        store = self.opened.store
        assert isinstance(store, MemoryStore)
        vars(self.store).update({name: value for name, value in vars(store).items() if name in ("clock", "_lock")})
        self.store._jobs, self.store._keys = store._jobs, store._keys

    def worker(self, settings: WorkerSettings | None = None, *, runners: Sequence[str] | None = None) -> Process:
        @asynccontextmanager
        async def connect() -> AsyncIterator[Renewer]:
            yield self.store

        here = self._here()
        whole = here.store
        here.store = replace(whole, store=self.store, renewer=self._connect or connect)
        try:
            return super().worker(settings or fast(), runners=runners)
        finally:
            here.store = whole


async def quick(job: RunningJob[Any]) -> None:
    """Does nothing."""


@pytest.mark.parametrize("verb", ["claim", "finish", "rescue", "look"])
@pytest.mark.parametrize("error", [StoreUnavailable, RuntimeError, asyncio.CancelledError])
async def test_no_error_of_the_store_ends_a_worker(verb: str, error: type[BaseException]) -> None:
    app = FaultyApp()
    app.handler("quick")(quick)
    app.store.raises = {verb: [error(), error(), error()]}
    async with app, working(app, fast(lease=timedelta(seconds=3))) as worker:
        await app.enqueue_many([app.job("quick") for _ in range(20)])
        await until(lambda: not app.store.raises[verb], "the errors are over")
        later = (await app.enqueue("quick")).id
        assert (await final_job(app, later)).state is JobState.SUCCEEDED
        assert await drained(app) == {JobState.SUCCEEDED: 21}
        await until(lambda: sum(worker.tally.values()) == 21, "every outcome was written")


@pytest.mark.parametrize(
    ("returned", "raised", "state", "code"),
    [
        ({"pages": 3}, None, JobState.SUCCEEDED, "OUTCOME_UNWRITABLE"),
        (None, Permanent("BAD_ADDRESS", "no such address"), JobState.FAILED, "OUTCOME_UNWRITABLE"),
        (None, Retryable("not now", after="1h"), JobState.READY, "OUTCOME_UNWRITABLE"),
    ],
    ids=["a success", "a failure", "a retry"],
)
async def test_an_outcome_whose_data_the_store_refuses_is_written_without_them(
    returned: object, raised: Exception | None, state: JobState, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, poisoned = FaultyApp(), asyncio.Event()

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> object:
        await poisoned.wait()
        if job.id != app.store.poison:
            return None
        if raised is not None:
            raise raised
        return returned

    async with app:
        enqueued = await app.enqueue_many([app.job("do") for _ in range(50)])
        app.store.poison = enqueued[25].id
        app.store.poisonous = lambda each: (
            each.result is not None or (each.error is not None and each.error.code != code)
        )
        poisoned.set()
        async with working(app, fast(concurrency=50)) as worker:
            await until(lambda: worker.tally.total() == 50, "every outcome is written")
        bad = await app.jobs.get(enqueued[25].id)
        assert (await app.jobs.count())[JobState.SUCCEEDED] == 49 + (state is JobState.SUCCEEDED)
    assert bad is not None
    assert (bad.state, bad.result, bad.attempt, codes(bad)) == (state, None, 1, [code])
    assert "no such character" in str(errors(bad)[0]["message"])
    assert caplog.text.count("outcome written without its data") == 1
    assert "secret" not in caplog.text


async def test_an_outcome_that_is_refused_whatever_it_says_is_kept_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FaultyApp()
    ran: list[UUID] = []

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> dict[str, int]:
        ran.append(job.id)
        return {"fence": job.fence}

    async with app:
        enqueued = await app.enqueue_many([app.job("do") for _ in range(50)])
        app.store.poison, app.store.poisonous = enqueued[25].id, lambda _: True
        async with working(app, fast(lease=timedelta(seconds=1), concurrency=50)):
            await until(lambda: caplog.text.count("outcome refused, keeping it") == 1, "the refusal is told")
            bad = app.store._jobs[enqueued[25].id]
            first = bad.until
            await until(lambda: bad.until != first, "its lease is renewed")
            others = [each.id for each in enqueued if each.id != bad.new.id]
            assert {(await final_job(app, id)).state for id in others} == {JobState.SUCCEEDED}
            later = (await app.enqueue("do")).id
            assert (await final_job(app, later)).state is JobState.SUCCEEDED
            app.store.poison = None
            job = await final_job(app, bad.new.id)
    assert (job.state, job.losses, job.errors) == (JobState.SUCCEEDED, 0, ())
    assert job.result == {"fence": job.fence}
    assert len(ran) == len(set(ran)) == 51
    assert caplog.text.count("outcome refused, keeping it") == 1


async def test_an_outcome_keeps_its_data_when_the_store_is_mended_between_two_tries() -> None:
    """The store refuses it, refuses it without its data, and refuses it once more; only then is the store mended."""
    app = FaultyApp()
    asked = count(1)

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> str:
        return "done"

    async with app:
        enqueued = await app.enqueue("do")
        app.store.poison, app.store.poisonous = enqueued.id, lambda _: next(asked) <= 3
        async with working(app, fast()):
            job = await final_job(app, enqueued.id)
    assert (job.state, job.result, job.errors) == (JobState.SUCCEEDED, "done", ())


BLAMELESS = [
    StoreUnavailable("too many notifications in the NOTIFY queue"),
    AccessRefused("permission denied for table lease"),
    InvalidInput("the database was renamed"),
    SchemaMismatch("run `holdfast migrate`"),
    InternalError("SQLSTATE 42601"),
]


@pytest.mark.parametrize("error", BLAMELESS, ids=lambda error: type(error).__name__)
async def test_an_error_that_is_not_an_outcome_s_own_never_changes_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.loop._BACKOFF", exponential(base="1ms", max="1ms", jitter="0s"))
    app = FaultyApp()
    ran: list[UUID] = []

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> dict[str, int]:
        ran.append(job.id)
        if len(ran) == 3:
            raise Permanent("BAD_ADDRESS")
        return {"fence": job.fence}

    async with app:
        app.store.raises["finish"] = [error] * 50
        ids = [each.id for each in await app.enqueue_many([app.job("do") for _ in range(5)])]
        async with working(app, fast(lease=timedelta(seconds=1), concurrency=5)):
            jobs = [await final_job(app, id) for id in ids]
        assert app.store.raises["finish"] == []
    assert [(job.attempt, job.losses) for job in jobs] == [(1, 0)] * 5
    assert Counter(job.state for job in jobs) == {JobState.SUCCEEDED: 4, JobState.FAILED: 1}
    assert [codes(job) for job in jobs if job.state is JobState.FAILED] == [["BAD_ADDRESS"]]
    assert all(job.result == {"fence": job.fence} for job in jobs if job.state is JobState.SUCCEEDED)


async def test_after_a_single_lost_connection_an_outcome_is_sent_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.worker.loop._BACKOFF", exponential(base="1h", max="1h", jitter="0s"))
    app = FaultyApp()
    app.handler("quick")(quick)
    async with app, working(app):
        for _ in range(3):
            app.store.raises["finish"] = [ConnectionLost("cut")]
            job = (await app.enqueue("quick")).id
            assert (await final_job(app, job)).state is JobState.SUCCEEDED


@asynccontextmanager
async def refusing() -> AsyncIterator[Renewer]:
    raise StoreUnavailable("too many connections")
    yield  # type: ignore[unreachable]


@asynccontextmanager
async def hanging() -> AsyncIterator[Renewer]:
    await asyncio.sleep(60)
    yield  # type: ignore[misc]


class SilentRenewer(ReleasesNothing):
    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        await asyncio.sleep(60)
        raise AssertionError


@asynccontextmanager
async def silent() -> AsyncIterator[Renewer]:
    yield SilentRenewer()


@pytest.mark.parametrize("connect", [refusing, hanging, silent], ids=["refused", "hanging", "silent"])
async def test_a_keeper_that_cannot_renew_stops_handlers_in_time_also_those_that_start_now(connect: Connect) -> None:
    app = FaultyApp(connect)
    stopped: list[bool] = []

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            record = app.store._jobs[job.id]
            stopped.append(record.until is not None and app.store.clock.read() < record.until)

    async with app, working(app, fast(lease=timedelta(seconds=3))):
        id = (await app.enqueue("waits", attempts=1)).id
        await until(lambda: len(stopped) == 2, "the handler was stopped, and so was the next attempt")
        job = await app.jobs.get(id)
    assert stopped[:2] == [True, True]
    # The store itself can be reached here, so that the interruption is written, no lease is lost and no attempt used.
    assert job is not None
    assert (codes(job)[0], job.losses, job.state.is_final) == ("INTERRUPTED", 0, False)


async def test_a_keeper_that_meets_a_bug_starts_again() -> None:
    failures = [RuntimeError("a bug"), asyncio.CancelledError("of something else"), RuntimeError("another bug")]

    @asynccontextmanager
    async def connect() -> AsyncIterator[Renewer]:
        if failures:
            raise failures.pop()
        yield app.store

    app = FaultyApp(connect)
    let_go = threading.Event()

    @app.handler("waits")
    def waits(job: RunningJob[Any]) -> None:
        let_go.wait()

    async with app, working(app, fast(lease=timedelta(seconds=3))):
        id = (await app.enqueue("waits")).id
        await until(lambda: id in app.store._jobs and app.store._jobs[id].until is not None, "the job is leased")
        first = app.store._jobs[id].until
        await until(lambda: app.store._jobs[id].until != first, "the lease is renewed after all")
        let_go.set()
        job = await final_job(app, id)
    assert (job.state, job.losses) == (JobState.SUCCEEDED, 0)


async def test_a_claim_that_is_answered_during_the_shutdown_is_given_back() -> None:
    app = FaultyApp()
    ran = []

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    async with app:
        await app.enqueue_many([app.job("do") for _ in range(3)])
        answer = app.store.hangs["claim"] = asyncio.Event()
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        await until(lambda: app.store.asked.count("claim") == 1, "a claim is under way")
        # The first claim asks for suspects; let it through to the one that finds the jobs.
        del app.store.hangs["claim"]
        answer.set()
        answer = app.store.hangs["claim"] = asyncio.Event()
        await until(lambda: app.store.asked.count("claim") == 2, "the claim that finds jobs is under way")
        worker.stop()
        await until(lambda: worker.is_stopping, "the worker is stopping")
        answer.set()
        assert await running == 0
        assert await app.jobs.count() == dict.fromkeys(JobState, 0) | {JobState.READY: 3}
        assert {record.attempt for record in app.store._jobs.values()} == {0}
    assert not ran
    assert worker.tally == {"release": 3}


@pytest.mark.parametrize("verb", ["finish", "release", "claim", "rescue"])
async def test_a_store_that_never_answers_does_not_keep_a_worker_from_ending(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.worker.GRACE_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.worker.held._LookAhead.size", lambda self: 20)
    app = FaultyApp()
    let_go = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        await let_go.wait()

    async with app:
        await app.enqueue_many([app.job("waits") for _ in range(10)])
        worker = app.worker(fast(shutdown=timedelta(milliseconds=200), concurrency=2))
        running = asyncio.create_task(worker.run())
        await until(lambda: len(worker.worker._slots.running) == 2, "handlers run")
        app.store.hangs[verb] = asyncio.Event()
        worker.wake()
        worker.stop()
        async with asyncio.timeout(10):
            assert await running == 0


@pytest.mark.parametrize("is_answered_late", [False, True])
async def test_an_outcome_whose_request_hangs_is_written_by_another_before_the_worker_ends(
    is_answered_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = FaultyApp()
    app.store.hangs_once["finish"] = let_go = asyncio.Event()

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None: ...

    async with app:
        ids = [each.id for each in await app.enqueue_many([app.job("do") for _ in range(3)])]
        worker = app.worker(fast(shutdown=timedelta(0)))
        running = asyncio.create_task(worker.run())
        await until(lambda: "finish" in app.store.asked, "the outcomes are under way")
        if is_answered_late:
            written = worker.worker._written

            def late(batch: Any, answers: Any) -> None:  # noqa: ANN401
                written(batch, answers)
                let_go.set()

            monkeypatch.setattr(worker.worker._finisher, "_written", late)
        worker.stop()
        assert await running == 0
        assert worker.worker.unwritten == 0
        assert worker.tally == {"succeed": 3}
        assert [(await final_job(app, id)).state for id in ids] == [JobState.SUCCEEDED] * 3


async def test_an_outcome_is_tried_until_the_time_to_shut_down_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pause has become that the usual way makes between two tries."""
    monkeypatch.setattr("holdfast.worker.loop._BACKOFF", exponential(base="1h", max="1h", jitter="0s"))
    app = FaultyApp()

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None: ...

    async with app:
        app.store.raises["finish"] = [StoreUnavailable("away") for _ in range(4)]
        job = await app.enqueue("do")
        worker = app.worker(fast(shutdown=timedelta(0)))
        running = asyncio.create_task(worker.run())
        await until(lambda: len(app.store.raises["finish"]) == 3, "the first try has failed")
        worker.stop()
        assert await running == 0
        assert worker.worker.unwritten == 0
        assert (await final_job(app, job.id)).state is JobState.SUCCEEDED


async def test_a_worker_that_is_canceled_interrupts_its_handlers_and_gives_the_rest_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.worker.held._LookAhead.size", lambda self: 20)
    app = Holdfast("memory:")
    stopped = []

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(job.id)

    async with app:
        await app.enqueue_many([app.job("waits") for _ in range(5)])
        worker = app.worker(fast(concurrency=2))
        running = asyncio.create_task(worker.run())
        await until(lambda: len(worker.worker._slots.waiting) == 3, "two handlers run, three wait")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await app.jobs.count())[JobState.READY] == 5
        jobs = [job for id in stopped if (job := await app.jobs.get(id)) is not None]
    assert [codes(job) for job in jobs] == [["INTERRUPTED"], ["INTERRUPTED"]]


async def test_a_tick_on_a_store_that_hangs_ends_and_says_so() -> None:
    app = FaultyApp()
    app.handler("do")(quick)
    app.settings = app.settings.changed(tick_max="1s")
    app.store.hangs["claim"] = asyncio.Event()
    async with app:
        await app.enqueue("do")
        report = await asyncio.wait_for(app.tick(runners=["queue"]), 30)
        app.store.hangs["claim"].set()
    assert [(part.runner, part.error) for part in report.runners] == [("queue", "it did not end in time")]
    assert not report.is_fine
