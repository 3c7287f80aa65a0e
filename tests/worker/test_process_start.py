"""The time to start a process does not count toward the handler's timeout."""

import asyncio
from datetime import timedelta

import pytest

from holdfast import Holdfast, JobState
from holdfast.types import WorkerSettings
from tests.worker.harness import final_job
from tests.worker.slow_import import handle


async def test_the_timeout_starts_when_the_process_receives_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOW_IMPORT_SECONDS", "3")
    app = Holdfast("memory:")
    app.handler("slow-start", isolation="process", timeout="2s", attempts=1)(handle)
    async with app:
        id = (await app.enqueue("slow-start")).id
        worker = app.worker(WorkerSettings(concurrency=1, poll=timedelta(milliseconds=20)))
        running = asyncio.create_task(worker.run())
        job = await final_job(app, id)
        worker.stop()
        await running
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
