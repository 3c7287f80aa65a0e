"""The app's lifespan, entered once per process before the first handler and exited after the last; `job.state`."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, JobState, RunningJob
from holdfast.backoff import steps
from holdfast.domain.lifecycle import Move
from holdfast.scheduling.schedules import Occurrence
from holdfast.testing import check_idempotency, in_memory
from holdfast.worker import lifespan as timing
from holdfast.worker import starts
from tests.worker.harness import drained, fast, final_job, until, working
from tests.worker.lifespans import FOLDER, app, notes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


async def test_handlers_share_the_state_opened_on_their_loop(folder: Path) -> None:
    async with app:
        jobs = [await app.enqueue(kind) for kind in ("async", "async", "thread")]
        async with working(app, fast(concurrency=1)):
            found = [(await final_job(app, job.id)).result for job in jobs]
            assert notes(folder) == [("open", os.getpid())]
    assert found == [{"pid": os.getpid(), "uses": 1}, {"pid": os.getpid(), "uses": 2}, os.getpid()]
    assert notes(folder) == [("open", os.getpid()), ("close", os.getpid())]


async def test_a_handler_process_opens_its_own_lifespan_and_keeps_it(folder: Path) -> None:
    async with app:
        jobs = [await app.enqueue(kind) for kind in ("process", "process", "plain process")]
        async with working(app, fast(concurrency=1, processes=1)):
            first, second, plain = [(await final_job(app, job.id)).result for job in jobs]
    child = first["pid"]
    assert child != os.getpid()
    assert (first["uses"], second, plain) == (1, {"pid": child, "uses": 2}, child)
    assert sorted(notes(folder)) == sorted((what, pid) for what in ("open", "close") for pid in (child, os.getpid()))


async def test_a_handler_that_calls_exit_leaves_the_lifespan_open_for_the_next(folder: Path) -> None:
    async with app:
        bad, good = await app.enqueue("exit in process"), await app.enqueue("process")
        async with working(app, fast(concurrency=1, processes=1)):
            assert (await final_job(app, bad.id)).state is JobState.DEAD
            used = (await final_job(app, good.id)).result
    assert [what for what, pid in notes(folder) if pid == used["pid"]] == ["open", "close"]


async def test_a_replaced_process_closes_its_lifespan(folder: Path) -> None:
    async with app:
        jobs = [await app.enqueue("process") for _ in range(2)]
        async with working(app, fast(concurrency=1, processes=1, process_jobs=1)):
            children = [(await final_job(app, job.id)).result["pid"] for job in jobs]
    assert len(set(children)) == 2
    for child in children:
        assert [what for what, pid in notes(folder) if pid == child] == ["open", "close"]


async def test_a_process_that_cannot_open_its_lifespan_costs_the_job_no_attempt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starts, "_REST", steps("20ms"))
    (folder / "broken").touch()
    async with app:
        job = await app.enqueue("plain process")
        async with working(app, fast(concurrency=1, processes=1)) as worker:
            await until(lambda: worker.tally[Move.RELEASE], "the job is given back")
            (folder / "broken").unlink()
            found = await final_job(app, job.id)
    assert (found.state, found.attempt, found.errors) == (JobState.SUCCEEDED, 1, ())
    assert "no clients today" in caplog.text


async def test_an_error_while_opening_the_lifespan_ends_the_worker_before_any_handler(folder: Path) -> None:
    @asynccontextmanager
    async def broken(app: Holdfast[Any]) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        if app.is_open:
            raise ConnectionError("no clients today")
        yield

    app: Holdfast[None] = Holdfast("memory:", lifespan=broken)
    app.handler("sell")(print)
    async with app:
        await app.enqueue("sell")
        with pytest.raises(ConnectionError, match="no clients today"):
            await app.worker(fast()).run()
        with pytest.raises(ConnectionError, match="no clients today"):
            await app.tick()
        assert (await app.jobs.count())[JobState.READY] == 1


async def test_only_a_tick_that_runs_handlers_opens_the_lifespan(folder: Path) -> None:
    async with app:
        await app.tick(runners=["schedules", "maintenance"])
        assert notes(folder) == []
        job = await app.enqueue("async")
        await app.tick()
        assert (await final_job(app, job.id)).state is JobState.SUCCEEDED
    assert [what for what, _ in notes(folder)] == ["open", "close"]


async def test_a_stop_while_the_lifespan_opens_cancels_it() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def slow(app: Holdfast[Any]) -> AsyncIterator[None]:
        steps.append("starts")
        try:
            await asyncio.sleep(3600)
        finally:
            steps.append("unwound")
        yield

    app: Holdfast[None] = Holdfast("memory:", lifespan=slow)
    app.handler("sell")(print)
    async with app, working(app):
        await until(lambda: steps, "it starts")
    assert steps == ["starts", "unwound"]


async def test_a_lifespan_that_hangs_while_closing_is_canceled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timing, "LEAVE_SECONDS", 0.1)

    @asynccontextmanager
    async def hanging(app: Holdfast[Any]) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(3600)

    app: Holdfast[None] = Holdfast("memory:", lifespan=hanging)
    app.handler("sell")(lambda job: None)
    async with app:
        job = await app.enqueue("sell")
        async with working(app):
            await final_job(app, job.id)
    assert "did not end in time and is canceled" in caplog.text


async def test_a_lifespan_that_ends_early_stops_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ConnectionError("the client broke")

    @asynccontextmanager
    async def failing(app: Holdfast[Any]) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            yield

    app: Holdfast[None] = Holdfast("memory:", lifespan=failing)
    app.handler("sell")(print)
    async with app:
        with pytest.raises(ExceptionGroup):
            await app.worker(fast()).run()
    assert "ended while handlers may run" in caplog.text


async def test_an_inline_runner_gets_the_state() -> None:
    seen: list[object] = []

    @asynccontextmanager
    async def opened(app: Holdfast[str]) -> AsyncIterator[str]:
        yield "open"

    app: Holdfast[str] = Holdfast("memory:", lifespan=opened)

    @app.runner("sync", "every 1h")
    async def sync(occurrence: Occurrence) -> None:
        seen.append(occurrence.state)

    async with app:
        await app.declare()
        await app.schedules.run_now("sync")
        await app.tick()
    assert seen == ["open"]


async def test_drain_run_and_the_idempotency_check_open_the_lifespan(folder: Path) -> None:
    async with in_memory(app) as jobs:
        await app.enqueue("async")
        report = await jobs.drain()
        assert [job.result for job in report.succeeded] == [{"pid": os.getpid(), "uses": 1}]
        assert await jobs.run("async") == {"pid": os.getpid(), "uses": 1}
    assert [what for what, _ in notes(folder)] == ["open", "close"] * 2
    (await check_idempotency(app, "thread")).raise_for_problems()


def test_an_invalid_lifespan_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^lifespan: 7 is not a function"):
        Holdfast("memory:", lifespan=7)  # type: ignore[arg-type]


async def test_a_lifespan_that_a_process_cannot_import_is_refused() -> None:
    @asynccontextmanager
    async def inner(app: Holdfast[Any]) -> AsyncIterator[None]:
        yield

    app: Holdfast[None] = Holdfast("memory:", lifespan=inner)
    app.handler("crunch", isolation="process")(print)
    async with app:
        with pytest.raises(InvalidInput, match=r"^lifespan: .* cannot be imported by the process of 'crunch'"):
            app.worker()


@dataclass
class Pool:
    size: int


def test_the_second_type_parameter_of_a_running_job_is_optional() -> None:
    app: Holdfast[Pool] = Holdfast("memory:")

    @app.handler("typed")
    async def typed(job: RunningJob[Pool, Pool]) -> int:
        return job.state.size + job.payload.size

    @app.handler("untyped")
    async def untyped(job: RunningJob[Pool]) -> None: ...

    assert app.handlers["typed"].payload_type is app.handlers["untyped"].payload_type is Pool


async def test_the_next_worker_enters_the_lifespan_again(folder: Path) -> None:
    for _ in range(2):
        async with app:
            await app.enqueue("async")
            async with working(app):
                await drained(app)
    assert [what for what, _ in notes(folder)] == ["open", "close"] * 2


async def test_a_test_can_replace_the_lifespan(monkeypatch: pytest.MonkeyPatch) -> None:
    app: Holdfast[Pool] = Holdfast("memory:")

    @app.handler("size")
    async def size(job: RunningJob[object, Pool]) -> int:
        return job.state.size

    monkeypatch.setattr(app, "lifespan", lambda app: nullcontext(Pool(3)))
    async with in_memory(app) as jobs:
        assert await jobs.run("size") == 3
