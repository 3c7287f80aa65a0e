"""A worker that cannot start a handler gives the job back at no cost, rests, and recovers by itself."""

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast, Job, JobState, RunningJob
from holdfast.backoff import steps
from holdfast.domain.failures import Failures
from holdfast.domain.job import Lease
from holdfast.domain.lifecycle import Move
from holdfast.domain.outcome import Retried
from holdfast.hosting.program import run_program
from holdfast.worker import executor, processes, starts
from holdfast.worker.child import Attempt, Ended, ProcessLimits
from holdfast.worker.processes import Processes
from holdfast.worker.threads import HandlerThreads
from tests.worker import children, importing
from tests.worker.harness import drained, fast, final_job, until, working

CANNOT = "handlers of this kind cannot be started"


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_REST", steps("20ms"))


class Shortage:
    """While `is_on`, no thread can be started, except those of the test."""

    def __init__(self) -> None:
        self.is_on = True


@contextmanager
def no_new_threads(only: str = "") -> Iterator[Shortage]:
    shortage, start = Shortage(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if shortage.is_on and thread.name.startswith(only):
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield shortage


class Import:
    """How `importing` can be imported by a handler's process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def goes_wrong(self, how: str) -> None:
        self._path.write_text(how)

    def works(self) -> None:
        self._path.unlink()


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    monkeypatch.setenv(importing.WRONG, str(tmp_path / "wrong"))
    return Import(tmp_path / "wrong")


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum(CANNOT in message for message in caplog.messages)


def app_with_process() -> Holdfast:
    app = Holdfast("memory:")
    app.handler("import", isolation="process", attempts=1)(importing.handle)
    return app


async def job_of(app: Holdfast, id: UUID) -> Job:
    job = await app.jobs.get(id)
    assert job is not None
    return job


async def test_a_shortage_of_threads_costs_no_attempt_and_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("memory:")

    @app.handler("count", attempts=1)
    def count(job: RunningJob[Any]) -> int:
        return job.attempt

    async with app:
        jobs = [await app.enqueue("count") for _ in range(6)]
        with no_new_threads("holdfast-handler") as shortage:
            async with working(app) as worker:
                await until(lambda: worker.tally[Move.RELEASE] >= 8, "jobs are given back again and again")
                shortage.is_on = False
                assert await drained(app) == {JobState.SUCCEEDED: 6}
        found = [await job_of(app, job.id) for job in jobs]
    assert [(job.attempt, job.errors, job.result) for job in found] == [(1, (), 1)] * 6
    assert told(caplog) == 1
    assert "can't start new thread" in caplog.text
    assert "handlers of this kind start again" in caplog.text


async def test_while_a_kind_rests_only_one_of_its_jobs_is_tried_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_REST", steps("300ms"))
    app = Holdfast("memory:")
    app.handler("rest")(lambda job: None)

    @app.handler("work")
    async def work(job: RunningJob[Any]) -> None: ...

    async with app:
        for _ in range(10):
            await app.enqueue("rest")
        with no_new_threads("holdfast-handler"):
            async with working(app) as worker:
                await until(lambda: worker.tally[Move.RELEASE] == 4, "the slots' jobs are given back")
                for _ in range(50):
                    await app.enqueue("work")
                await until(lambda: worker.tally[Move.SUCCEED] == 50, "others are not held up")
                await until(lambda: worker.tally[Move.RELEASE] == 5, "one is tried")


@pytest.mark.parametrize("how", ["raises", "exits"])
async def test_an_app_that_a_process_cannot_import_costs_no_attempt(
    how: str, imported: Import, caplog: pytest.LogCaptureFixture
) -> None:
    imported.goes_wrong(how)
    app = app_with_process()
    async with app:
        id = (await app.enqueue("import")).id
        async with working(app, fast(processes=1)) as worker:
            await until(lambda: worker.tally[Move.RELEASE] >= 2, "the job is given back")
            imported.works()
            job = await final_job(app, id)
    assert (job.state, job.attempt, job.errors) == (JobState.SUCCEEDED, 1, ())
    assert told(caplog) == 1
    why = {"raises": "half of the new release is on disk", "exits": "exited with code 7 before the handler began"}
    assert why[how] in caplog.text


async def test_a_process_that_hangs_before_the_handler_begins_costs_no_attempt(
    imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_START_SECONDS", 0.1)
    imported.goes_wrong("hangs")
    app = Holdfast("memory:")
    app.handler("import", isolation="process", attempts=1, timeout="100ms")(importing.handle)
    async with app:
        id = (await app.enqueue("import")).id
        async with working(app, fast(processes=1)) as worker:
            await until(lambda: worker.tally[Move.RELEASE], "the job is given back")
        job = await job_of(app, id)
    assert (job.state, job.attempt, job.errors) == (JobState.READY, 0, ())


async def test_a_shortage_of_descriptors_costs_no_attempt_and_ends_by_itself(
    imported: Import, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0
    start = processes._Child.__init__

    def refuse_twice(self: processes._Child, *arguments: Any) -> None:  # noqa: ANN401
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        start(self, *arguments)

    monkeypatch.setattr(processes._Child, "__init__", refuse_twice)
    app = app_with_process()
    async with app:
        id = (await app.enqueue("import")).id
        async with working(app, fast(processes=1)):
            job = await final_job(app, id)
    assert (job.state, job.attempt, job.errors) == (JobState.SUCCEEDED, 1, ())
    assert "Too many open files" in caplog.text


async def test_without_threads_no_process_serves_and_none_is_lost(imported: Import) -> None:
    app = app_with_process()
    async with app:
        async with working(app, fast(processes=1)):
            first = await final_job(app, (await app.enqueue("import")).id)
            with no_new_threads("holdfast-process"):
                jobs = [(await app.enqueue("import")).id for _ in range(3)]
                found = [await final_job(app, id) for id in jobs]
            assert {job.result for job in found} == {first.result}
        with no_new_threads("holdfast-process") as shortage:
            async with working(app, fast(processes=1)) as worker:
                id = (await app.enqueue("import")).id
                await until(lambda: worker.tally[Move.RELEASE], "the job is given back")
                shortage.is_on = False
                assert (await final_job(app, id)).attempt == 1


async def test_a_job_cannot_pass_as_run_because_code_around_it_swallows_every_error() -> None:
    app = Holdfast("memory:")
    app.handler("do")(lambda job: None)

    @app.around
    async def swallow(job: RunningJob[Any], call: Callable[[], Awaitable[Any]]) -> object:
        try:
            return await call()
        except Exception:  # noqa: BLE001 - as an application might
            return None

    async with app:
        id = (await app.enqueue("do")).id
        with no_new_threads("holdfast-handler") as shortage:
            async with working(app) as worker:
                await until(lambda: worker.tally[Move.RELEASE], "the job is given back")
                assert (await job_of(app, id)).state is not JobState.SUCCEEDED
                shortage.is_on = False
                assert (await final_job(app, id)).state is JobState.SUCCEEDED


async def test_a_worker_that_has_started_no_handler_for_long_ends_to_be_restarted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starts, "_HOPELESS_SECONDS", 0.05)
    app = Holdfast("memory:")
    app.handler("do")(lambda job: None)
    async with app:
        id = (await app.enqueue("do")).id
        with no_new_threads("holdfast-handler"):
            async with asyncio.timeout(30):
                assert await app.worker(fast()).run() == 1
        assert (await job_of(app, id)).attempt == 0
    assert "no handler of this isolation could be started for too long; draining for a restart" in caplog.text


async def test_a_worker_that_has_not_tried_for_long_no_longer_claims_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_REST", steps("200ms"))
    monkeypatch.setattr(starts, "_STALE_SECONDS", 0.05)
    app = Holdfast("memory:")
    app.handler("do")(lambda job: None)
    async with app:
        id = (await app.enqueue("do")).id
        with no_new_threads("holdfast-handler"):
            async with working(app) as worker:
                await until(lambda: worker.not_started, "the worker knows why")
                await app.cancel([id])
                await until(lambda: worker.not_started is None, "the worker forgets it")


async def test_a_tick_reports_that_it_could_not_start_a_handler() -> None:
    app = Holdfast("memory:")
    app.handler("do")(lambda job: None)
    async with app:
        id = (await app.enqueue("do")).id
        with no_new_threads("holdfast-handler"):
            report = await app.tick(runners=["queue"])
        assert (await job_of(app, id)).state is JobState.READY
    assert not report.is_fine
    assert "can't start new thread" in str(report.runners[0].error)


class Poison:
    """What no JSON can be: a payload that kills the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


async def test_a_job_whose_own_content_kills_the_process_is_to_blame() -> None:
    app = Holdfast("memory:")
    pool = Processes(ProcessLimits(1))
    async with app:
        id = (await app.enqueue("any")).id
        job = RunningJob(
            *(Lease(id, 1, uuid4()), "any", "default", Poison(), {}, "", "", 1, 0, 1),
            *((await app.clock.now()), (await app.clock.now()), print, None, None, print),
        )
        attempt = Attempt(children.tell_pid, object, job, Failures(), timedelta(seconds=30))  # type: ignore[arg-type]
        try:
            ended = await pool.run(attempt, list, list, print, list, lambda _: None)  # type: ignore[arg-type]
        finally:
            await asyncio.to_thread(pool.close)
    assert isinstance(ended, Ended)
    assert isinstance(ended.outcome, Retried)
    assert ended.outcome.error.code == "PROCESS_DIED"


def test_work_that_found_no_thread_leaves_nothing_behind() -> None:
    threads, gate = HandlerThreads(), threading.Event()
    try:
        with no_new_threads("holdfast-handler"), pytest.raises(RuntimeError):
            threads.submit(list)
        busy = threads.submit(gate.wait)
        assert threads.submit(lambda: "ran").result(10) == "ran"
        other = threads.submit(gate.wait)
        assert threads.submit(lambda: "ran alongside two").result(10) == "ran alongside two"
        gate.set()
        assert busy.result(10)
        assert other.result(10)
    finally:
        gate.set()
        threads.close()


async def test_a_worker_without_a_thread_for_its_leases_claims_nothing_until_it_has_one() -> None:
    app = Holdfast("memory:")

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None: ...

    async with app:
        id = (await app.enqueue("do")).id
        with no_new_threads("holdfast-lease-keeper") as shortage:
            async with working(app) as worker:
                for _ in range(20):
                    await asyncio.sleep(0)
                assert (await job_of(app, id)).state is JobState.READY
                shortage.is_on = False
                assert (await final_job(app, id)).state is JobState.SUCCEEDED
                assert worker.is_keeping


async def test_a_worker_stops_in_order_while_no_thread_can_be_started(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "holdfast")
    app = Holdfast("memory:")

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None: ...

    async with app:
        with ExitStack() as shortage:
            async with working(app):
                await final_job(app, (await app.enqueue("do")).id)
                shortage.enter_context(no_new_threads())
    assert "worker stopped" in caplog.text
    assert "could not close" not in caplog.text


def test_a_program_ends_in_order_while_no_thread_can_be_started() -> None:
    with no_new_threads():

        async def main() -> int:
            return 7

        assert run_program(main) == 7
