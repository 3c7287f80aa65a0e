"""How much a worker claims, and when it claims nothing: look-ahead and kind limits. See also test_suspects.py."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.handlers import Room, make_handler
from holdfast.domain.job import LeasedJob
from holdfast.store.contract import ClaimRequest, Fenced, Finish, JobFilter
from holdfast.types import WorkerSettings
from tests.worker.harness import Database, until


def settings(**given: Any) -> WorkerSettings:  # noqa: ANN401
    return WorkerSettings(**{"poll": timedelta(milliseconds=20), "concurrency": 4, **given})


async def test_a_worker_does_not_hoard_slow_jobs_after_fast_ones() -> None:
    app = Holdfast("memory:")
    let_go = asyncio.Event()

    @app.handler("fast")
    async def fast(job: RunningJob[Any]) -> None:
        pass

    @app.handler("slow")
    async def slow(job: RunningJob[Any]) -> None:
        await let_go.wait()

    async with app:
        await app.enqueue_many([app.job("fast") for _ in range(3000)] + [app.job("slow") for _ in range(200)])
        worker = app.worker(settings())
        running = asyncio.create_task(worker.run())

        await until(
            lambda: worker.tally["succeed"] == 3000 and len(worker.worker._slots.held) == 4,
            "only the slots are held",
        )
        let_go.set()
        await until(lambda: worker.tally["succeed"] == 3200, "everything is done")
        worker.stop()
        assert await running == 0
        jobs = await app.jobs.list(JobFilter(), 4000)
        assert {job.attempt for job in jobs} == {1}


async def test_a_thread_that_cannot_be_stopped_counts_toward_the_limit_of_its_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")
    let_go = threading.Event()
    at_once: list[int] = []
    running_now: Counter[str] = Counter()

    @app.handler("stuck", limit=1, timeout="100ms", attempts=3, backoff="steps 0s")
    def stuck(job: RunningJob[Any]) -> None:
        running_now["stuck"] += 1
        at_once.append(running_now["stuck"])
        let_go.wait()
        running_now["stuck"] -= 1

    @app.handler("other")
    async def other(job: RunningJob[Any]) -> None:
        pass

    async with app:
        first = await app.enqueue("stuck")
        await app.enqueue("stuck")
        worker = app.worker(settings(concurrency=8))
        running = asyncio.create_task(worker.run())
        await until(lambda: "told to stop but is still running" in caplog.text, "the first attempt timed out")
        await app.enqueue("other")
        await until(lambda: worker.tally["succeed"] == 1, "the claimer has looked again")
        assert at_once == [1]
        assert worker.tally["retry"] == 0
        let_go.set()
        await until(lambda: worker.tally["succeed"] == 3, "both are done, one after the other")
        worker.stop()
        await running
        assert set(at_once) == {1}
        job = await app.jobs.get(first.id)
        assert job is not None
        assert job.errors[0]["code"] == "TIMEOUT"


async def test_a_job_with_an_unwritten_outcome_does_not_count_toward_the_limit_of_its_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Holdfast("memory:")
    let_write = asyncio.Event()
    started, at_once, running_now = 0, set[int](), 0

    @app.handler("narrow", limit=1)
    async def narrow(job: RunningJob[Any]) -> None:
        nonlocal started, running_now
        started, running_now = started + 1, running_now + 1
        at_once.add(running_now)
        await asyncio.sleep(0)
        running_now -= 1

    async with app:
        finish = app.opened.store.finish

        async def finish_late(finishes: Sequence[Finish]) -> list[Fenced]:
            await let_write.wait()
            return await finish(finishes)

        monkeypatch.setattr(app.opened.store, "finish", finish_late)
        await app.enqueue_many([app.job("narrow") for _ in range(20)])
        worker = app.worker(settings())
        running = asyncio.create_task(worker.run())
        await until(lambda: started >= 8, "one after the other, until too many outcomes wait")
        let_write.set()
        await until(lambda: worker.tally["succeed"] == 20, "all are done")
        worker.stop()
        assert await running == 0
    assert at_once == {1}


async def test_only_jobs_of_a_kind_without_room_stay_in_the_store() -> None:
    app = Holdfast("memory:")
    rooms = [Room(0, more_in=7.0)]
    running_now = 0
    at_once: set[int] = set()

    async def held_up(job: RunningJob[Any]) -> None:
        nonlocal running_now
        running_now += 1
        at_once.add(running_now)
        await asyncio.sleep(0)
        running_now -= 1

    app.handlers.add(replace(make_handler("held up", held_up), room=lambda: rooms[-1]))

    @app.handler("other")
    async def other(job: RunningJob[Any]) -> None: ...

    async with app:
        await app.enqueue_many([app.job(kind) for kind in ("held up", "other") for _ in range(10)])
        worker = app.worker(settings())
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.tally["succeed"] == 10, "the others are done")
        look = await worker.worker.fill()
        assert (look.claimed, look.again_in, at_once) == (0, 7.0, set())
        rooms.append(Room(1))
        await until(lambda: worker.tally["succeed"] == 20, "one after the other")
        assert at_once == {1}
        worker.stop()
        assert await running == 0


async def test_a_handler_that_cancels_its_own_task_fails() -> None:
    app = Holdfast("memory:")

    @app.handler("cancels", attempts=1)
    async def cancels(job: RunningJob[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with app:
        id = (await app.enqueue("cancels")).id
        worker = app.worker(settings())
        running = asyncio.create_task(worker.run())
        await until(lambda: worker.tally.total() == 1, "the attempt is over")
        worker.stop()
        await running
        job = await app.jobs.get(id)
        assert job is not None
        assert (job.state, job.losses) == (JobState.DEAD, 0)
        assert job.errors[0]["type"] == "CancelledError"


async def test_no_claim_exceeds_claim_max_and_the_next_one_follows_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without rings and polls, only a claim that found everything it asked for can trigger the next one.
    app = Holdfast(database.url, claim_max=3, concurrency=8, listen=False, poll="1h", idle_backoff_min="1h")
    let_go, running, taken = asyncio.Event(), set[UUID](), list[int]()

    @app.handler("work")
    async def work(job: RunningJob[Any]) -> None:
        running.add(job.id)
        await let_go.wait()

    async with app:
        claim = app.opened.store.claim

        async def counted(request: ClaimRequest) -> list[LeasedJob]:
            jobs = await claim(request)
            taken.append(len(jobs))
            return jobs

        monkeypatch.setattr(app.opened.store, "claim", counted)
        await app.enqueue_many([app.job("work") for _ in range(50)])
        worker = app.worker(runners=["queue"])
        task = asyncio.create_task(worker.run())
        await until(lambda: len(running) == 8, "every slot has a job")
        let_go.set()
        await until(lambda: worker.tally["succeed"] == 50, "everything is done")
        worker.stop()
        assert await task == 0
    assert sum(taken) == 50
    assert max(taken) == 3


async def test_no_claim_exceeds_claim_bytes_and_the_next_one_follows_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Holdfast(database.url, claim_bytes=250_000, concurrency=50, listen=False, poll="1h", idle_backoff_min="1h")
    taken = list[int]()

    @app.handler("work")
    async def work(job: RunningJob[Any]) -> None:
        assert job.payload == "x" * 100_000

    async with app:
        claim = app.opened.store.claim

        async def counted(request: ClaimRequest) -> list[LeasedJob]:
            jobs = await claim(request)
            taken.append(len(jobs))
            return jobs

        monkeypatch.setattr(app.opened.store, "claim", counted)
        await app.enqueue_many([app.job("work", "x" * 100_000) for _ in range(20)])
        worker = app.worker(runners=["queue"])
        task = asyncio.create_task(worker.run())
        await until(lambda: worker.tally["succeed"] == 20, "everything is done")
        worker.stop()
        assert await task == 0
        assert {(job.attempt, job.losses) for job in await app.jobs.list(JobFilter(), 100)} == {(1, 0)}
    assert max(taken) == 3


async def test_a_small_claim_not_yet_started_does_not_keep_the_next_from_filling_the_slots() -> None:
    """With the memory store, the next look happens before the handlers begin."""
    app = Holdfast("memory:", claim_max=3, concurrency=8, poll="1h", idle_backoff_min="1h")
    let_go, running = asyncio.Event(), set[UUID]()

    @app.handler("work")
    async def work(job: RunningJob[Any]) -> None:
        running.add(job.id)
        await let_go.wait()

    async with app:
        await app.enqueue_many([app.job("work") for _ in range(50)])
        worker = app.worker(runners=["queue"])
        task = asyncio.create_task(worker.run())
        await until(lambda: len(running) == 8, "every slot has a job")
        let_go.set()
        worker.stop()
        assert await task == 0


async def test_a_tick_continues_with_small_claims_until_done() -> None:
    app = Holdfast("memory:", claim_max=1)
    app.handler("work")(lambda job: None)
    async with app:
        await app.enqueue_many([app.job("work") for _ in range(20)])
        (report,) = (await app.tick(runners=["queue"])).runners
    assert report.processed == 20
