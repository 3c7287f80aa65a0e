"""How attempts begin: their tasks, their contexts, and the number of event loop iterations they take."""

import asyncio
import sys
import time
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, RunningJob
from holdfast.domain.job import JobState, LeasedJob
from holdfast.domain.lease_clock import lease_now
from holdfast.store.contract import ClaimRequest, JobFilter
from holdfast.worker import claimer, held, worker
from tests.worker.harness import drained, errors, fast, final_job, until, working


def app_of_waiting_and_other_handlers() -> Holdfast:
    app = Holdfast("memory:")

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0.001)

    @app.handler("does")
    async def does(job: RunningJob[Any]) -> None:
        pass

    return app


async def all_succeed_with(factory: Any) -> None:  # noqa: ANN401 - factories differ in their signature
    app = app_of_waiting_and_other_handlers()
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        async with app:
            await app.enqueue_many([app.job(kind) for kind in ("waits", "does", "does", "waits") * 5])
            async with working(app):
                assert await drained(app) == {JobState.SUCCEEDED: 20}
    finally:
        loop.set_task_factory(None)


async def test_a_task_factory_without_context_support_works() -> None:
    await all_succeed_with(lambda loop, coro: asyncio.Task(coro, loop=loop))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks come with Python 3.12")
async def test_an_eager_task_factory_works() -> None:
    await all_succeed_with(asyncio.eager_task_factory)  # type: ignore[attr-defined]


async def test_handlers_that_wait_start_together() -> None:
    app = Holdfast("memory:")
    turns, turns_at_start = 0, []
    all_started = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        turns_at_start.append(turns)
        await all_started.wait()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    async with app:
        await app.enqueue_many([app.job("waits") for _ in range(50)])
        async with working(app, fast(concurrency=50)):
            await until(lambda: len(turns_at_start) == 50, "all run")
            all_started.set()
            assert await drained(app) == {JobState.SUCCEEDED: 50}
    counting.cancel()
    assert turns_at_start[-1] - turns_at_start[0] < 10


async def test_a_task_kept_by_a_handler_is_not_reused_for_another() -> None:
    app = Holdfast("memory:")
    kept: list[asyncio.Task[Any] | None] = []

    @app.handler("keeps")
    async def keeps(job: RunningJob[Any]) -> None:
        kept.append(asyncio.current_task())

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        for task in kept:
            if task is not None:
                task.cancel()
        await asyncio.sleep(0.01)

    async with app:
        await app.enqueue_many([app.job(kind) for kind in ("keeps", "waits", "keeps", "waits")])
        async with working(app):
            assert await drained(app) == {JobState.SUCCEEDED: 4}
    assert len(set(kept)) == 2


async def test_a_handler_that_cancels_its_task_as_it_returns_harms_no_other() -> None:
    app = Holdfast("memory:")

    @app.handler("cancels")
    async def cancels(job: RunningJob[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @app.handler("does")
    async def does(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0)

    async with app:
        await app.enqueue_many([app.job(kind) for kind in ("cancels", "does", "does")])
        async with working(app):
            assert await drained(app) == {JobState.SUCCEEDED: 3}


async def test_attempts_canceled_by_a_handler_before_their_first_step_still_run() -> None:
    app = app_of_waiting_and_other_handlers()

    @app.handler("sweeps")
    async def sweeps(job: RunningJob[Any]) -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "does":
                task.cancel()

    async with app:
        await app.enqueue_many([app.job(kind) for kind in ("sweeps", "does", "does", "does")])
        async with working(app):
            assert await drained(app) == {JobState.SUCCEEDED: 4}
        assert {job.attempt for job in await app.jobs.list(JobFilter(), 4)} == {1}


async def test_no_attempt_sees_the_context_variables_of_another() -> None:
    app = Holdfast("memory:")
    mark: ContextVar[str] = ContextVar("mark", default="none")
    seen: list[str] = []

    @app.handler("marks")
    async def marks(job: RunningJob[Any]) -> None:
        seen.append(mark.get())
        mark.set("marked")
        if job.payload["waits"]:
            await asyncio.sleep(0)

    async with app:
        await app.enqueue_many([app.job("marks", {"waits": number % 2 == 0}) for number in range(20)])
        async with working(app):
            assert await drained(app) == {JobState.SUCCEEDED: 20}
    assert seen == ["none"] * 20


class Turns:
    """Counts the iterations of the event loop, and notes the count at which each job started."""

    def __init__(self, app: Holdfast) -> None:
        self.at_start: list[int] = []
        self._number = 0
        self._counting = asyncio.create_task(self._count())
        app.handler("notes")(self._note)

    async def _note(self, job: RunningJob[Any]) -> None:
        self.at_start.append(self._number)

    async def _count(self) -> None:
        while True:
            self._number += 1
            await asyncio.sleep(0)

    async def of(self, app: Holdfast, jobs: int) -> list[int]:
        async with app:
            await app.enqueue_many([app.job("notes") for _ in range(jobs)])
            async with working(app, fast(concurrency=jobs)):
                assert await drained(app) == {JobState.SUCCEEDED: jobs}
        self._counting.cancel()
        return self.at_start


async def test_the_event_loop_runs_while_many_jobs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_TURN_SECONDS", 0.0)
    app = Holdfast("memory:")
    turns = await Turns(app).of(app, 20)
    assert turns[-1] - turns[0] > 15


async def test_jobs_that_fit_into_one_turn_start_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_TURN_SECONDS", 60.0)
    app = Holdfast("memory:")
    turns = await Turns(app).of(app, 20)
    assert len(set(turns)) == 1


async def test_an_error_is_stored_without_the_frames_of_the_engine() -> None:
    app = Holdfast("memory:")

    @app.handler("waits", attempts=1)
    async def waits(job: RunningJob[Any]) -> None:
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, failing.set_exception, ValueError("broken"))
        await failing

    async with app:
        id = (await app.enqueue("waits")).id
        async with working(app):
            (error,) = errors(await final_job(app, id))
    traceback = str(error["traceback"])
    assert "await failing" in traceback
    assert "worker.py" not in traceback


async def test_jobs_with_a_slot_are_not_released_while_a_handler_blocks_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_LONGEST_WAIT_SECONDS", 0.05)
    app = Holdfast("memory:")

    @app.handler("blocks")
    async def blocks(job: RunningJob[Any]) -> None:
        time.sleep(0.1)  # noqa: ASYNC251 - the handler must block

    async with app:
        await app.enqueue_many([app.job("blocks") for _ in range(4)])
        async with working(app, fast(concurrency=4)) as process:
            assert await drained(app) == {JobState.SUCCEEDED: 4}
            assert process.worker.tally == {"succeed": 4}


@pytest.mark.parametrize("took", [27.0, 60.0])
async def test_a_claim_answered_near_or_after_the_end_of_its_lease_starts_nothing(
    took: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease keeper checks only at intervals, and could stop a handler that begins this late too late."""
    app = Holdfast("memory:")
    fences = []
    monkeypatch.setattr(claimer, "lease_now", lambda: lease_now() - took)

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None:
        fences.append(job.fence)

    async with app:
        claim = app.opened.store.claim

        async def slow_for_once(request: ClaimRequest) -> list[LeasedJob]:
            nonlocal took
            claimed = await claim(request)
            took = 0.0 if claimed else took
            return claimed

        monkeypatch.setattr(app.opened.store, "claim", slow_for_once)
        id = (await app.enqueue("do")).id
        async with working(app, fast(lease=timedelta(seconds=30))) as process:
            job = await final_job(app, id)
            await until(lambda: process.worker.tally["release"] == 1, "the release is counted")
    assert fences == [2], "somebody else may have had it since"
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)


def test_the_look_ahead_falls_with_time_however_rarely_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("holdfast.worker.held.time.monotonic", lambda: now)
    ahead = held._LookAhead(2000)
    for _ in range(1000):
        ahead.done += 1
    now += 0.05
    assert ahead.size() == 2000
    now += 1.0
    assert ahead.size() < 20


def test_the_look_ahead_recovers_gradually_after_a_wrong_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("holdfast.worker.held.time.monotonic", lambda: now)
    ahead = held._LookAhead(1000)

    def busy() -> int:
        nonlocal now
        for _ in range(200):
            ahead.done += 1
        now += 0.0101
        return ahead.size()

    assert busy() == 1000
    ahead.give_up()
    sizes = [busy() for _ in range(20)]
    assert sizes[0] < 400
    assert sizes == sorted(sizes)
    assert sizes[-1] == 1000


async def test_the_lease_keeper_checks_as_often_as_the_shortest_lease_requires() -> None:
    """Even while no job is held, because the next claimed job may have the shortest lease."""
    app = Holdfast("memory:", lease="30s")
    app.handler("usual")(lambda job: None)
    app.handler("short", lease="2s")(lambda job: None)
    async with app:
        assert app.worker().worker._keeper._default_lease == 2.0
