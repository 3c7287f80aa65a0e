"""Handlers in separate processes, and handlers that exceed their timeout."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Job, JobState, RunningJob
from tests.worker import children, jobs, slow_import
from tests.worker.conftest import Workers
from tests.worker.harness import (
    PATIENCE,
    Database,
    child_processes,
    codes,
    entries_of,
    errors,
    fast,
    final_job,
    is_alive,
    job_in_state,
    renewing,
    until,
    working,
)

ONE_SLOT = fast(concurrency=1)


def app_with(*functions: Any, timeout: str = "5m") -> Holdfast:  # noqa: ANN401
    app = Holdfast("memory:")
    for function in functions:
        app.handler(function.__name__, isolation="process", attempts=1, timeout=timeout)(function)
    return app


def pids(folder: Path) -> list[int]:
    """The process IDs that a handler wrote, or none before it has."""
    path = folder / "pids"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


async def done(app: Holdfast, kind: str, payload: object = None) -> Job:
    return await final_job(app, (await app.enqueue(kind, payload)).id)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (children.exits_at_once, "exited with code 7"),
        (children.segfaults, "killed by SIGSEGV"),
        (children.kills_itself, "killed by SIGSEGV"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_process_that_dies_fails_only_one_attempt(function: Any, message: str) -> None:  # noqa: ANN401
    app = app_with(function, children.tell_pid)
    async with app, working(app, ONE_SLOT):
        job = await done(app, function.__name__)
        assert (await done(app, "tell_pid")).state is JobState.SUCCEEDED
    assert job.state is JobState.DEAD
    (error,) = errors(job)
    assert error["code"] == "PROCESS_DIED"
    assert message in str(error["message"])


async def test_a_childs_exception_or_result_becomes_the_outcome_and_the_child_lives_on() -> None:
    app = app_with(
        children.exits, children.raises_unpicklable, children.returns_much, children.typed, children.tell_pid
    )
    app.handler("tell_pid_async", isolation="process")(children.tell_pid_async)
    async with app, working(app, ONE_SLOT):
        before = await done(app, "tell_pid")
        exited = await done(app, "exits")
        raised = await done(app, "raises_unpicklable")
        large = await done(app, "returns_much", {"size": 60_000})
        too_large = await done(app, "returns_much", {"size": 70_000_000})
        typed = await done(app, "typed", {"number": 12})
        after = await done(app, "tell_pid_async")
    assert [(error["code"], error["type"]) for error in errors(exited)] == [("ERROR", "SystemExit")]
    (error,) = errors(raised)
    assert (error["type"], error["message"]) == ("Unpicklable", "cannot travel")
    assert "raises_unpicklable" in str(error["traceback"])
    assert large.result == "x" * 60_000
    assert codes(too_large) == ["INVALID_RESULT"]
    assert typed.result == 12
    assert before.result == after.result != os.getpid()


async def test_a_handler_that_its_process_cannot_import_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    others = set(child_processes())
    app = app_with(children.unreachable, children.tell_pid)
    async with app, working(app, ONE_SLOT):
        id = (await app.enqueue("hidden_by_its_decorator")).id
        await until(lambda: "cannot be started" in caplog.text, "it is logged")
        assert (await done(app, "tell_pid")).state is JobState.SUCCEEDED
        assert len(set(child_processes()) - others) == 2, "one that serves, and the guard"
        job = await job_in_state(app, id, JobState.READY)
    assert (job.attempt, job.errors) == (0, ())
    assert "it's not the same object as tests.worker.children.hidden_by_its_decorator" in caplog.text


async def test_progress_comes_from_any_thread_of_a_child_and_ends_with_its_attempt(tmp_path: Path) -> None:
    app = app_with(children.reports, children.reports_after_its_end, timeout="60s")
    async with app, working(app, renewing(concurrency=1)):
        id = (await app.enqueue("reports", {"gate": str(tmp_path / "gate")})).id

        async def has_progress() -> bool:
            job = await app.jobs.get(id)
            return job is not None and job.progress is not None and job.progress == {"done": True}

        await until(has_progress, "the newest progress is written")
        (tmp_path / "gate").touch()
        assert (await final_job(app, id)).state is JobState.SUCCEEDED
        assert (await done(app, "reports_after_its_end")).state is JobState.SUCCEEDED
        again = (await app.enqueue("reports", {"gate": str(tmp_path / "never")})).id
        id = again
        await until(has_progress, "the next attempt's own progress is written")
        await app.cancel([again])
        assert (await final_job(app, again)).state is JobState.CANCELED


async def test_context_variables_do_not_leak_from_job_to_job_in_a_child() -> None:
    app = app_with(children.sees_context)
    async with app, working(app, ONE_SLOT):
        seen = [(await done(app, "sees_context")).result for _ in range(3)]
    assert seen == ["nobody"] * 3


async def test_a_child_knows_its_deadline_tenant_and_correlation_id() -> None:
    app = app_with(children.tells_deadline, timeout="1h")
    before = datetime.now(UTC)
    async with app, working(app):
        id = (await app.enqueue("tells_deadline", tenant="acme", correlation_id="trace")).id
        deadline, tenant, correlation_id = (await final_job(app, id)).result
    assert timedelta(hours=1) <= datetime.fromisoformat(deadline) - before < timedelta(hours=1, minutes=1)
    assert (tenant, correlation_id) == ("acme", "trace")


async def test_the_timeout_kills_the_child(tmp_path: Path) -> None:
    app = app_with(children.sleeps, children.tell_pid, timeout="3s")
    async with app, working(app, ONE_SLOT):
        job = await done(app, "sleeps", {"pid": str(tmp_path / "pid")})
        assert not is_alive(int((tmp_path / "pid").read_text()))
        assert (await done(app, "tell_pid")).state is JobState.SUCCEEDED
    assert job.state is JobState.DEAD
    assert codes(job) == ["TIMEOUT"]


async def test_a_child_that_died_while_idle_costs_no_attempt() -> None:
    app = app_with(children.tell_pid)
    async with app, working(app, ONE_SLOT):
        pid = (await done(app, "tell_pid")).result
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_alive(pid), "the idle child is dead")
        job = await done(app, "tell_pid")
    assert (job.state, job.attempt, job.errors) == (JobState.SUCCEEDED, 1, ())


async def test_a_daemon_left_behind_by_a_handler_lives_on_but_does_not_hide_its_death(tmp_path: Path) -> None:
    """By starting a new session, a program declares that it is not part of the job."""
    app = app_with(children.leaves_a_daemon_behind)
    async with app, working(app, ONE_SLOT):
        job = await done(app, "leaves_a_daemon_behind", {"pids": str(tmp_path / "pids")})
        (left,) = pids(tmp_path)
    assert is_alive(left)
    os.kill(left, signal.SIGKILL)
    assert "exited with code 9" in str(errors(job)[0]["message"])


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (children.starts_processes, "TIMEOUT"),
        (children.starts_processes_and_exits, "PROCESS_DIED"),
        (children.starts_multiprocessing, "TIMEOUT"),
    ],
    ids=["timeout", "death", "multiprocessing"],
)
async def test_processes_started_by_a_handler_end_with_its_process(function: Any, code: str, tmp_path: Path) -> None:  # noqa: ANN401
    app = app_with(function, children.tell_pid, timeout="3s")
    async with app, working(app, ONE_SLOT):
        job = await done(app, function.__name__, {"pids": str(tmp_path / "pids")})
        await until(lambda: not any(map(is_alive, pids(tmp_path))), "what it started is dead too")
        assert (await done(app, "tell_pid")).state is JobState.SUCCEEDED
    assert codes(job) == [code]
    assert len(pids(tmp_path)) == 3


async def test_a_starting_process_survives_signals_to_the_workers_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLOW_IMPORT_SECONDS", "1")
    app = app_with(slow_import.handle)
    others = set(child_processes())
    async with app, working(app, ONE_SLOT):
        id = (await app.enqueue("handle")).id
        await until(lambda: set(child_processes()) - others, "a process starts")
        for child in set(child_processes()) - others:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(child, number)
        job = await final_job(app, id)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


async def test_a_process_is_replaced_after_its_number_of_jobs() -> None:
    app = app_with(children.tell_pid)
    async with app, working(app, fast(concurrency=1, process_jobs=2)):
        seen = [(await done(app, "tell_pid")).result for _ in range(5)]
        assert [is_alive(pid) for pid in seen] == [False, False, False, False, True]
    assert [seen[0], seen[2], seen[4]] == [seen[1], seen[3], seen[4]]
    assert len(set(seen)) == 3


async def test_a_process_is_replaced_when_its_memory_has_grown() -> None:
    app = app_with(children.tell_pid, children.hoards)
    async with app, working(app, fast(concurrency=1, process_megabytes=300)):
        before = [(await done(app, "tell_pid")).result for _ in range(3)]
        grown = (await done(app, "hoards", {"megabytes": 300})).result
        after = (await done(app, "tell_pid")).result
    assert {*before, grown} == {grown}
    assert after != grown


async def test_waiting_for_a_process_does_not_count_toward_the_timeout(tmp_path: Path) -> None:
    app = app_with(children.waits_for_gate)
    app.handler("brief", isolation="process", attempts=1, timeout="500ms")(children.tell_pid)
    async with app:
        gated = (await app.enqueue("waits_for_gate", {"gate": str(tmp_path / "gate")}, priority=0)).id
        brief = (await app.enqueue("brief", priority=9)).id
        async with working(app, fast(processes=1)):
            await job_in_state(app, brief, JobState.RUNNING)
            late = time.monotonic() + 1.0
            await until(lambda: time.monotonic() > late, "twice its timeout is over")
            (tmp_path / "gate").touch()
            job = await final_job(app, brief)
            assert (await final_job(app, gated)).state is JobState.SUCCEEDED
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


async def test_jobs_that_wait_for_a_process_leave_the_remaining_slots_to_others(tmp_path: Path) -> None:
    app = app_with(children.waits_for_gate)

    @app.handler("other")
    async def other(job: RunningJob[Any]) -> None:
        """Needs no process."""

    async with app:
        payload = {"gate": str(tmp_path / "gate")}
        gated = [(await app.enqueue("waits_for_gate", payload)).id for _ in range(6)]
        async with working(app, fast(processes=2)):
            assert (await done(app, "other")).state is JobState.SUCCEEDED
            assert (await app.jobs.count())[JobState.RUNNING] == 2
            (tmp_path / "gate").touch()
            assert {(await final_job(app, id)).state for id in gated} == {JobState.SUCCEEDED}


async def test_a_stopping_worker_does_not_start_jobs_that_waited_for_a_process(tmp_path: Path) -> None:
    app = app_with(children.waits_for_gate)
    app.handler("brief", isolation="process", attempts=2)(children.tell_pid)
    async with app:
        gated = (await app.enqueue("waits_for_gate", {"gate": str(tmp_path / "gate")}, priority=0)).id
        brief = (await app.enqueue("brief", priority=9)).id
        async with working(app, fast(processes=1, shutdown=timedelta(seconds=PATIENCE))) as worker:
            await job_in_state(app, brief, JobState.RUNNING)
            worker.stop()
            await job_in_state(app, brief, JobState.READY)
            (tmp_path / "gate").touch()
            assert (await final_job(app, gated)).state is JobState.SUCCEEDED
        await job_in_state(app, brief, JobState.READY)


async def test_a_child_can_terminate_programs_that_it_starts_but_ignores_stop_signals() -> None:
    app = app_with(children.terminates_a_program, children.tell_pid)
    async with app, working(app, ONE_SLOT):
        assert (await done(app, "terminates_a_program")).result == -signal.SIGTERM
        pid = (await done(app, "tell_pid")).result
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        assert (await done(app, "tell_pid")).result == pid


async def test_a_cancel_request_kills_the_child(tmp_path: Path) -> None:
    app = app_with(children.sleeps)
    async with app, working(app, renewing()):
        id = (await app.enqueue("sleeps", {"pid": str(tmp_path / "pid")})).id
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the handler started")
        await app.cancel([id])
        job = await final_job(app, id)
        assert not is_alive(int((tmp_path / "pid").read_text()))
    assert job.state is JobState.CANCELED


@pytest.mark.postgres
async def test_code_that_holds_the_gil_in_a_child_does_not_cost_the_lease(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_FOLDER", str(tmp_path))
    app = Holdfast(database.url)
    app.handler("regex", isolation="process", timeout="3s", attempts=1)(jobs.regex)
    ends = set()
    async with app, working(app, renewing()):
        id = (await app.enqueue("regex")).id

        async def is_over() -> bool:
            job = await app.jobs.get(id)
            if job is not None and entries_of(tmp_path, id, "start"):
                ends.add(job.lease_until)
            return job is not None and job.state.is_final

        await until(is_over, "the job timed out")
        job = await final_job(app, id)
        (started,) = entries_of(tmp_path, id, "start")
        assert not is_alive(started.pid)
    assert (job.state, job.attempt, job.losses) == (JobState.DEAD, 1, 0)
    assert codes(job) == ["TIMEOUT"]
    assert len(ends) > 3, "the lease was renewed all the time"


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.fault
@pytest.mark.parametrize("kind", ["starts_processes", "starts_processes_and_runs_away", "starts_multiprocessing"])
async def test_neither_a_child_nor_its_descendants_outlive_a_killed_worker(
    kind: str, database: Database, workers: Workers, tmp_path: Path
) -> None:
    async with jobs.build(database.url) as app:
        await app.enqueue(kind, {"pids": str(tmp_path / "pids")})
        worker = workers.start()
        await until(lambda: len(pids(tmp_path)) == 3, "the handler has started them")
        assert worker.pid not in pids(tmp_path)
        worker.send(signal.SIGKILL)
        await worker.exit_code()
        try:
            await until(lambda: not any(map(is_alive, pids(tmp_path))), "they are dead too")
        finally:
            # A runaway regular expression would otherwise keep a CPU busy for years.
            for pid in pids(tmp_path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


async def test_a_thread_that_times_out_is_logged_and_keeps_its_slot_and_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")
    let_go = threading.Event()

    @app.handler("stuck", attempts=1, timeout="100ms")
    def stuck(job: RunningJob[Any]) -> str:
        let_go.wait()
        return "too late"

    @app.handler("next")
    def next_one(job: RunningJob[Any]) -> None:
        """Runs in another thread."""

    async with app, working(app, fast(concurrency=3)) as worker:
        id = (await app.enqueue("stuck")).id
        await until(lambda: "told to stop but is still running" in caplog.text, "it is reported")
        assert (await done(app, "next")).state is JobState.SUCCEEDED
        await job_in_state(app, id, JobState.RUNNING)
        assert len(worker.worker._slots.running) == 1
        let_go.set()
        await until(lambda: not worker.worker._slots.running, "the slot is free again")
        job = await final_job(app, id)
    assert "handler returned after its timeout, its result is dropped" in caplog.text
    assert "handler that could not be stopped has ended" in caplog.text
    assert job.result is None
    assert job.state is JobState.DEAD
    assert codes(job) == ["TIMEOUT"]


@pytest.mark.parametrize(("is_left_behind", "code"), [(False, "TIMEOUT"), (True, "INTERRUPTED")])
async def test_an_exception_in_a_thread_after_its_stop_does_not_reach_the_event_loops_handler(
    is_left_behind: bool, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast("memory:")
    begun, let_go = threading.Event(), threading.Event()
    timeout = "1h" if is_left_behind else "50ms"
    raised: list[weakref.ref[Exception]] = []
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what["message"]))

    class ServerIsGoneError(Exception):
        pass

    @app.handler("stuck", attempts=1, timeout=timeout)
    def stuck(job: RunningJob[Any]) -> None:
        begun.set()
        let_go.wait()
        error = ServerIsGoneError()
        raised.append(weakref.ref(error))
        raise error

    def is_forgotten() -> bool:
        gc.collect()
        return [each() for each in raised] == [None]

    async with app, working(app, fast(shutdown=timedelta(0))) as worker:
        id = (await app.enqueue("stuck")).id
        if is_left_behind:
            await job_in_state(app, id, JobState.RUNNING)
            await until(begun.is_set, "the thread runs")
            worker.stop()
        else:
            await until(lambda: "told to stop but is still running" in caplog.text, "it is past its timeout")
            let_go.set()
        assert codes(await job_in_state(app, id, JobState.DEAD, JobState.READY)) == [code]
        let_go.set()
        await until(is_forgotten, "the error is forgotten")
    assert complaints == []


async def test_a_worker_with_half_of_its_slots_stuck_drains_and_exits_nonzero() -> None:
    app = Holdfast("memory:")
    let_go = threading.Event()
    waits = asyncio.Event()

    @app.handler("stuck", attempts=1, timeout="50ms")
    def stuck(job: RunningJob[Any]) -> None:
        let_go.wait()

    @app.handler("fine")
    async def fine(job: RunningJob[Any]) -> None:
        await waits.wait()

    async with app:
        worker = app.worker(fast(concurrency=4))
        running = asyncio.create_task(worker.run())
        fine_id = (await app.enqueue("fine")).id
        await job_in_state(app, fine_id, JobState.RUNNING)
        stuck_ids = [(await app.enqueue("stuck")).id for _ in range(2)]
        await until(lambda: worker.is_stopping, "the worker drains by itself")
        late = (await app.enqueue("fine")).id
        waits.set()
        async with asyncio.timeout(20):
            assert await running == 1
        assert (await final_job(app, fine_id)).state is JobState.SUCCEEDED
        assert [codes(await final_job(app, id)) for id in stuck_ids] == [["TIMEOUT"], ["TIMEOUT"]]
        assert (await job_in_state(app, late, JobState.READY)).attempt == 0
    let_go.set()
