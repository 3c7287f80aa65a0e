"""Handlers that keep running after they were told to stop: their worker keeps the job until they end."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from tests.worker.harness import Database, codes, fast, final_job, job_in_state, renewing, until, working

STILL_RUNNING = "handler was told to stop but is still running"


def thread(let_go: threading.Event, at_once: list[int]) -> Callable[[RunningJob[Any]], str]:
    running = 0

    def handle(job: RunningJob[Any]) -> str:
        nonlocal running
        running += 1
        at_once.append(running)
        let_go.wait()
        running -= 1
        return f"attempt {job.attempt}"

    return handle


def stubborn(let_go: threading.Event, at_once: list[int]) -> Callable[[RunningJob[Any]], Any]:
    running = 0

    async def handle(job: RunningJob[Any]) -> str:
        nonlocal running
        running += 1
        at_once.append(running)
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        running -= 1
        return f"attempt {job.attempt}"

    return handle


@pytest.mark.parametrize("kind", [thread, stubborn])
async def test_the_next_attempt_does_not_begin_before_the_timed_out_one_has_ended(
    kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.worker.GRACE_SECONDS", 0.1)
    monkeypatch.setattr("holdfast.worker.lease_keeper.GRACE_SECONDS", 0.1)
    app = Holdfast("memory:")
    let_go = threading.Event()
    at_once: list[int] = []
    app.handler("slow", timeout="200ms", attempts=3, backoff="steps 0s")(kind(let_go, at_once))
    async with app, working(app, renewing(concurrency=4)) as worker:
        id = (await app.enqueue("slow")).id
        await until(lambda: STILL_RUNNING in caplog.text, "it is past its timeout")
        first = (await job_in_state(app, id, JobState.RUNNING)).lease_until

        async def is_renewed() -> bool:
            return (await job_in_state(app, id, JobState.RUNNING)).lease_until != first

        await until(is_renewed, "its lease is renewed")
        assert (at_once, worker.tally) == ([1], {})
        let_go.set()
        job = await final_job(app, id)
    assert (job.state, job.result, job.attempt, job.losses) == (JobState.SUCCEEDED, "attempt 2", 2, 0)
    assert (codes(job), at_once) == (["TIMEOUT"], [1, 1])


async def test_a_handler_that_keeps_running_is_logged_at_growing_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.worker._SAY_AGAIN_SECONDS", 0.1)
    app = Holdfast("memory:")
    let_go = threading.Event()
    app.handler("slow", timeout="100ms", attempts=1)(thread(let_go, []))

    def logged_at() -> list[float]:
        return [record.created for record in caplog.records if STILL_RUNNING in record.getMessage()]

    async with app, working(app):
        id = (await app.enqueue("slow")).id
        await until(lambda: len(logged_at()) == 4, "it is logged repeatedly")
        let_go.set()
        assert codes(await final_job(app, id)) == ["TIMEOUT"]
    _, *gaps = [after - before for before, after in pairwise(logged_at())]
    assert all(after > 1.5 * before for before, after in pairwise(gaps))


@pytest.mark.postgres
async def test_a_thread_that_loses_its_lease_keeps_its_slot_but_not_its_job(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast(database.url)
    let_go = threading.Event()
    app.handler("slow", timeout="100ms", attempts=1)(thread(let_go, []))
    async with app, working(app, renewing()) as worker:
        id = (await app.enqueue("slow")).id
        await until(lambda: STILL_RUNNING in caplog.text, "it is past its timeout")
        database.query("DELETE FROM holdfast.lease WHERE id = %s", id)
        await until(lambda: worker.tally["lost"] == 1, "the worker counts it as lost")
        assert len(worker.worker._slots.running) == 1
        let_go.set()
        await until(lambda: not worker.worker._slots.running, "the slot is free")
    assert worker.tally == {"lost": 1}


async def test_a_stopping_worker_does_not_wait_for_a_thread_past_its_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")
    let_go = threading.Event()
    app.handler("slow", timeout="100ms", attempts=2)(thread(let_go, []))
    async with app:
        async with working(app, fast(concurrency=4)) as worker:
            id = (await app.enqueue("slow")).id
            await until(lambda: STILL_RUNNING in caplog.text, "it is past its timeout")
            worker.stop()
        job = await app.jobs.get(id)
        assert job is not None
        assert (job.state, codes(job)) == (JobState.READY, ["TIMEOUT"])
        assert "handler cannot be stopped and is left behind, its job is given back" in caplog.text
    let_go.set()


async def test_an_attempt_in_a_thread_lasts_beyond_a_timeout_of_the_application_until_the_thread_ends() -> None:
    app = Holdfast("memory:")
    let_go, given_up = threading.Event(), asyncio.Event()
    at_once: list[int] = []
    app.handler("slow", attempts=2, backoff="steps 0s")(thread(let_go, at_once))

    @app.around
    async def in_time(job: RunningJob[Any], call: Callable[[], Any]) -> object:
        async with asyncio.timeout(60 if let_go.is_set() else 0.05) as limit:
            asyncio.get_running_loop().call_at(limit.when() or 0.0, given_up.set)
            return await call()

    async with app, working(app) as worker:
        id = (await app.enqueue("slow")).id
        await given_up.wait()
        await job_in_state(app, id, JobState.RUNNING)
        assert worker.tally == {}
        let_go.set()
        job = await final_job(app, id)
    assert (job.state, job.result, at_once) == (JobState.SUCCEEDED, "attempt 2", [1, 1])
    assert job.last_error is not None
    assert job.last_error.type == "TimeoutError"
