"""`@app.around`: functions that wrap every attempt."""

import asyncio
from pathlib import Path

import pytest

from holdfast import Cancel, Holdfast, InvalidInput, JobState, Permanent, RunningJob, Snooze
from holdfast.worker.hooks import Call
from tests.worker import lifespans
from tests.worker.harness import codes, drained, fast, final_job, working
from tests.worker.lifespans import FOLDER


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:")


async def test_wrappers_nest_in_the_order_of_declaration(app: Holdfast) -> None:
    steps: list[str] = []

    @app.around
    async def outer(job: RunningJob[object], call: Call) -> object:
        steps.append(f"outer {job.kind}")
        try:
            return await call()
        finally:
            steps.append("outer ends")

    @app.around
    async def inner(job: RunningJob[object], call: Call) -> object:
        steps.append("inner")
        return await call()

    @app.handler("async")
    async def run(job: RunningJob[object]) -> str:
        steps.append("handler")
        return "async"

    @app.handler("thread")
    def run_in_thread(job: RunningJob[object]) -> str:
        steps.append("handler")
        return "thread"

    async with app:
        for kind in ("async", "thread"):
            job = await app.enqueue(kind)
            async with working(app):
                assert (await final_job(app, job.id)).result == kind
            assert steps == [f"outer {kind}", "inner", "handler", "outer ends"]
            steps.clear()


async def test_each_attempt_is_wrapped_and_its_exception_passes_through(app: Holdfast) -> None:
    seen: list[BaseException] = []

    @app.around
    async def report(job: RunningJob[object], call: Call) -> object:
        try:
            return await call()
        except Exception as error:
            seen.append(error)
            raise

    @app.handler("fails", attempts=3, backoff="steps 0s")
    async def fail(job: RunningJob[object]) -> None:
        raise ValueError(f"attempt {job.attempt}")

    async with app:
        job = await app.enqueue("fails")
        async with working(app):
            assert (await final_job(app, job.id)).state is JobState.DEAD
    assert [str(error) for error in seen] == ["attempt 1", "attempt 2", "attempt 3"]


async def test_a_wrapper_can_change_the_result_or_end_the_job_without_the_handler(app: Holdfast) -> None:
    called: list[str] = []

    @app.around
    async def decide(job: RunningJob[object], call: Call) -> object:
        if job.kind == "canceled":
            raise Cancel("not today")
        if job.kind == "failed":
            raise Permanent("OFF", "switched off")
        if job.kind == "snoozed" and job.attempt == 1 and not called:
            called.append("snooze")
            raise Snooze("0s")
        return {"wrapped": await call()}

    for kind in ("canceled", "failed", "snoozed"):

        @app.handler(kind)
        async def handle(job: RunningJob[object]) -> str:
            called.append(job.kind)
            return "done"

    async with app:
        jobs = [await app.enqueue(kind) for kind in ("canceled", "failed", "snoozed")]
        async with working(app):
            canceled, failed, snoozed = [await final_job(app, job.id) for job in jobs]
    assert called == ["snooze", "snoozed"]
    assert (canceled.state, failed.state, codes(failed)) == (JobState.CANCELED, JobState.FAILED, ["OFF"])
    assert (snoozed.state, snoozed.result) == (JobState.SUCCEEDED, {"wrapped": "done"})


async def test_an_attempt_in_a_separate_process_is_wrapped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(lifespans.app, "_arounds", [])
    seen: list[object] = []

    @lifespans.app.around
    async def report(job: RunningJob[object], call: Call) -> object:
        try:
            result = await call()
        except Exception as error:
            seen.append(str(error))
            raise
        seen.append(result)
        return result

    app = lifespans.app
    async with app:
        good, bad = await app.enqueue("plain process"), await app.enqueue("fail in process")
        async with working(app, fast(concurrency=1, processes=1)):
            succeeded, dead = await final_job(app, good.id), await final_job(app, bad.id)
    assert seen == [succeeded.result, "KeyError: 'in the process'"]
    assert (succeeded.state, dead.state) == (JobState.SUCCEEDED, JobState.DEAD)
    assert "fail_in_process" in (dead.last_error.traceback if dead.last_error else "")


async def test_a_timeout_unwinds_the_wrapper(app: Holdfast) -> None:
    unwound: list[str] = []

    @app.around
    async def slow(job: RunningJob[object], call: Call) -> object:
        try:
            return await call()
        finally:
            unwound.append(job.kind)

    @app.handler("hangs", timeout="50ms", attempts=1)
    async def hang(job: RunningJob[object]) -> None:
        await asyncio.sleep(3600)

    async with app:
        await app.enqueue("hangs")
        async with working(app):
            assert await drained(app) == {JobState.DEAD: 1}
    assert unwound == ["hangs"]


def test_an_unsuitable_wrapper_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match=r"^around: give an async def"):
        app.around(lambda job, call: call())
    with pytest.raises(InvalidInput, match=r"^around: must take the job and the call"):

        @app.around  # type: ignore[type-var]
        async def short(job: object) -> None: ...
