"""What a handler forks ends with the handler's code: it never answers, and never becomes a second worker."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from holdfast import Holdfast, JobState
from holdfast.worker.forks import end_forks_in_loop
from tests.worker import children, forking
from tests.worker.conftest import Workers
from tests.worker.harness import Database, codes, errors, fast, final_job, is_alive, until, working
from tests.worker.test_processes_and_timeouts import app_with, done

ONE_PROCESS = fast(concurrency=1)


@pytest.mark.parametrize("how", forking.ENDINGS)
@pytest.mark.parametrize("function", [forking.forks, forking.forks_on_loop])
async def test_a_fork_in_a_process_ends_with_the_exit_code_of_what_it_did(how: str, function: Any) -> None:  # noqa: ANN401
    app = app_with(function, timeout="20s")
    async with app, working(app, ONE_PROCESS):
        job = await done(app, function.__name__, {"how": how})
    assert (job.state, job.result) == (JobState.SUCCEEDED, forking.ENDINGS[how])


@pytest.mark.parametrize("how", forking.ENDINGS)
@pytest.mark.parametrize("function", [forking.forks_in_task, forking.waits_in_its_fork])
async def test_a_fork_that_comes_back_to_the_event_loop_of_a_process_ends_there(how: str, function: Any) -> None:  # noqa: ANN401
    app = app_with(function, timeout="20s")
    async with app, working(app, ONE_PROCESS):
        job = await done(app, function.__name__, {"how": how})
    assert (job.state, job.result) == (JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("how", forking.ENDINGS)
async def test_every_later_attempt_in_the_process_has_its_own_outcome(how: str, tmp_path: Path) -> None:
    app = app_with(forking.leaves_a_fork_behind, forking.numbered)
    gate, back = tmp_path / "gate", tmp_path / "back"
    async with app, working(app, ONE_PROCESS):
        payload = {"how": how, "gate": str(gate), "back": str(back)}
        fork = (await done(app, "leaves_a_fork_behind", payload)).result
        gate.touch()
        await until(back.exists, "the fork comes back")
        jobs = [await done(app, "numbered", {"number": number}) for number in range(6)]
        await until(lambda: not is_alive(fork), "the fork is over")
    assert [(job.state, job.result) for job in jobs[::2]] == [(JobState.SUCCEEDED, number) for number in (0, 2, 4)]
    assert [(job.state, codes(job)) for job in jobs[1::2]] == [(JobState.FAILED, ["ODD"])] * 3


async def test_a_process_that_answers_for_another_attempt_is_killed_and_not_believed() -> None:
    app = app_with(forking.answers_for_another, children.tell_pid)
    async with app, working(app, ONE_PROCESS):
        before = (await done(app, "tell_pid")).result
        job = await done(app, "answers_for_another")
        assert not is_alive(before)
        after = await done(app, "tell_pid")
    assert (job.state, codes(job)) == (JobState.DEAD, ["PROCESS_DIED"])
    assert "answered for another attempt" in str(errors(job)[0]["message"])
    assert (after.state, after.result == before) == (JobState.SUCCEEDED, False)


async def test_a_fork_reports_no_progress() -> None:
    app = app_with(forking.reports_from_its_fork)
    async with app, working(app, ONE_PROCESS):
        job = await done(app, "reports_from_its_fork")
    assert (job.result, job.progress) == (0, None)


async def test_a_handler_in_a_process_may_use_multiprocessing() -> None:
    app = app_with(forking.computes_in_a_pool, forking.terminates_a_fork, timeout="30s")
    async with app, working(app, ONE_PROCESS):
        assert (await done(app, "computes_in_a_pool")).result == [1, 4, 9]
        assert (await done(app, "terminates_a_fork")).result == -signal.SIGTERM


async def test_signals_have_their_default_effect_on_a_fork() -> None:
    """A signal handler in Python would run only after the fork's current call, which may be a long sleep."""
    app = app_with(forking.handles_signals)
    async with app, working(app, ONE_PROCESS):
        assert (await done(app, "handles_signals")).result == ["default", "own"]


@pytest.mark.postgres
@pytest.mark.fault
async def test_a_fork_in_a_worker_ends_before_it_becomes_a_second_one(database: Database, workers: Workers) -> None:
    async with Holdfast(database.url) as app:
        worker = workers.start(concurrency=1)
        for how, code in forking.ENDINGS.items():
            for kind, expected in (
                ("forks", code),
                ("forks_on_loop", code),
                ("forks_in_task", 1),
                ("waits_in_its_fork", 1),
            ):
                job = await final_job(app, (await app.enqueue(kind, {"how": how})).id)
                assert (kind, how, job.state, job.result) == (kind, how, JobState.SUCCEEDED, expected)
        worker.send(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert worker.tally == {"succeed": 12}


def test_a_signal_to_a_fork_of_a_worker_ends_the_fork_and_does_not_stop_the_worker() -> None:
    run = [sys.executable, "-m", "tests.worker.forking"]
    assert subprocess.run(run, capture_output=True, check=True).stdout == b"-15 False"


class Received(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_fork_neither_reads_nor_writes_what_its_event_loop_has_open(new_loop: Callable[[], Any]) -> None:
    """The engine's connections are in that loop: a byte taken or repeated breaks the conversation with PostgreSQL."""

    async def fork_between() -> tuple[bytes, bytes]:
        end_forks_in_loop()
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            transport, received = await loop.create_connection(Received, sock=ours)
            await asyncio.sleep(0)
            theirs.send(b"answer")
            transport.write(b"one ")
            loop.call_soon(transport.write, b"two")
            if pid := os.fork():
                assert forking.exit_code(pid) == 1
                await until(lambda: received.data, "the answer arrives")
                transport.close()
                await until(lambda: theirs.recv(100, socket.MSG_PEEK).endswith(b"two"), "the request arrives")
                return received.data, theirs.recv(100)
            await asyncio.sleep(60)
        raise AssertionError("the fork came back")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(fork_between()) == (b"answer", b"one two")
