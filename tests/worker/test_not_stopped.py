"""A handler that was told to stop but returned anyway never counts silently as a plain success."""

import asyncio
import contextlib
import time
from datetime import timedelta

import pytest

from holdfast import Holdfast, JobState, RunningJob
from tests.worker.harness import codes, fast, final_job, job_in_state, working

RETURNED_LATE = "handler should have stopped but did not, its result is kept"


async def test_a_swallowed_timeout_is_logged_and_does_not_succeed(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("memory:")

    @app.handler("late", timeout="50ms", attempts=1)
    async def late(job: RunningJob[object]) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "done"

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("late")).id)
    assert (job.state, codes(job)) == (JobState.DEAD, ["TIMEOUT"])
    assert "handler returned after its timeout, its result is dropped" in caplog.text
    assert f"job_id={job.id}" in caplog.text


async def test_a_handler_that_blocked_the_loop_past_its_timeout_is_logged_and_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")

    @app.handler("rude", timeout="50ms")
    async def rude(job: RunningJob[object]) -> None:
        time.sleep(0.4)  # noqa: ASYNC251 - the handler must block

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("rude")).id)
    assert (job.state, codes(job)) == (JobState.SUCCEEDED, ["NOT_STOPPED"])
    assert RETURNED_LATE in caplog.text


async def test_a_swallowed_worker_shutdown_is_logged_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("memory:")

    @app.handler("goes_on")
    async def goes_on(job: RunningJob[object]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    async with app:
        async with working(app, fast(shutdown=timedelta(0))):
            id = (await app.enqueue("goes_on")).id
            await job_in_state(app, id, JobState.RUNNING)
        job = await final_job(app, id)
    assert (job.state, codes(job)) == (JobState.SUCCEEDED, ["NOT_STOPPED"])
    assert 'why="worker is shutting down"' in caplog.text


async def test_a_handler_that_returns_in_time_has_no_note() -> None:
    app = Holdfast("memory:")

    @app.handler("quick", timeout="10s")
    async def quick(job: RunningJob[object]) -> None:
        await asyncio.sleep(0.01)

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("quick")).id)
    assert (job.state, job.errors) == (JobState.SUCCEEDED, ())
