"""Workers and jobs of different releases: no job fails for being too new or too old."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.types import JobFilter
from tests.worker.children import Letter, names_recipients
from tests.worker.harness import codes, final_job, until, working


def many_recipients(payload: dict[str, Any]) -> dict[str, Any]:
    return {"recipients": [payload["to"]]}


async def claimed_and_released(app: Holdfast, kind: str) -> None:
    """Wait until the worker has claimed the job and released it again."""
    claims = app.opened.store._fence  # type: ignore[attr-defined]

    async def is_back() -> bool:
        (job,) = await app.jobs.list(JobFilter(kind=kind), 1)
        return app.opened.store._fence > claims and job.state is JobState.READY  # type: ignore[attr-defined]

    await until(is_back, "the job was released")


async def test_a_worker_releases_jobs_newer_than_its_handler_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")

    @app.handler("letter.send", attempts=1)
    async def send(job: RunningJob[Letter]) -> None:
        raise AssertionError("it knows nothing of version 2")

    async with app:
        await app.clock.freeze(await app.clock.now())
        enqueued = await app.enqueue("letter.send", {"text": "not for version 1"}, version=2)
        async with working(app):
            for _ in range(3):
                await claimed_and_released(app, "letter.send")
                job = await app.jobs.get(enqueued.id)
                assert job is not None
                assert (job.attempt, job.losses, job.errors) == (0, 0, ())
                assert job.run_at is not None
                wait = job.run_at - await app.clock.now()
                assert timedelta(seconds=1) <= wait <= timedelta(seconds=10)
                await app.clock.advance(timedelta(seconds=10))
    warnings = [record.getMessage() for record in caplog.records if "newer worker" in record.getMessage()]
    assert len(warnings) == 1
    assert "kind=letter.send version=2 handler=1" in warnings[0]


async def test_a_worker_with_the_newer_handler_runs_the_newer_job() -> None:
    app = Holdfast("memory:")

    @app.handler("letter.send", attempts=1, version=2)
    async def send(job: RunningJob[Letter]) -> list[str]:
        return job.payload.recipients

    async with app:
        enqueued = await app.enqueue("letter.send", Letter(["ann"]))
        async with working(app):
            found = await final_job(app, enqueued.id)
    assert (found.state, found.result) == (JobState.SUCCEEDED, ["ann"])


@pytest.mark.parametrize("isolation", ["async", "process"])
async def test_a_newer_handler_reads_an_older_payload_through_its_upgrades(isolation: str) -> None:
    app = Holdfast("memory:")

    async def send(job: RunningJob[Letter]) -> list[str]:
        return job.payload.recipients

    function: Any = send if isolation == "async" else names_recipients
    app.handler("letter.send", version=2, upgrades={1: many_recipients}, attempts=1, isolation=isolation)(function)
    async with app:
        old = await app.enqueue("letter.send", {"to": "ann"}, version=1)
        new = await app.enqueue("letter.send", {"recipients": ["bob", "eve"]})
        async with working(app):
            assert (await final_job(app, old.id)).result == ["ann"]
            assert (await final_job(app, new.id)).result == ["bob", "eve"]
            # The stored payload is unchanged.
            kept = await app.jobs.get(old.id)
            assert kept is not None
            assert kept.payload == {"to": "ann"}


async def test_a_failing_upgrade_is_a_failed_attempt_like_any_other() -> None:
    app = Holdfast("memory:")

    @app.handler("letter.send", version=2, upgrades={1: many_recipients}, attempts=2, backoff="steps 0s")
    async def send(job: RunningJob[Letter]) -> None:
        raise AssertionError("it has no payload")

    async with app:
        broken = await app.enqueue("letter.send", {"from": 1}, version=1)
        async with working(app):
            found = await final_job(app, broken.id)
    assert (found.state, codes(found)) == (JobState.DEAD, ["ERROR", "ERROR"])


async def test_an_invalid_version_is_a_validation_error() -> None:
    app = Holdfast("memory:")

    @app.handler("letter.send")
    async def send(job: RunningJob[Any]) -> None:
        raise AssertionError("its version is unknown")

    async with app:
        wrong = await app.enqueue("letter.send", {}, headers={"holdfast.version": "two"})
        async with working(app):
            found = await final_job(app, wrong.id)
    assert (found.state, codes(found)) == (JobState.FAILED, ["VALIDATION_ERROR"])


async def test_a_job_that_waits_for_a_newer_worker_can_be_canceled() -> None:
    app = Holdfast("memory:")

    @app.handler("letter.send")
    async def send(job: RunningJob[Any]) -> None:
        raise AssertionError("it knows nothing of version 2")

    async with app:
        enqueued = await app.enqueue("letter.send", {}, version=2)
        async with working(app):
            await claimed_and_released(app, "letter.send")
            await app.cancel([enqueued.id])
            assert (await final_job(app, enqueued.id)).state is JobState.CANCELED
