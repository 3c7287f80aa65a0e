"""Handlers that fork, where the fork returns into Holdfast's code instead of exiting or becoming another program."""

import asyncio
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Permanent, RunningJob
from holdfast.domain.outcome import Succeeded
from holdfast.worker.child import Ended

Job = RunningJob[dict[str, Any]]

ENDINGS = {"returns": 0, "raises": 1, "exits": 3}
"""How a fork returns, and the exit code that Python then gives it."""


def come_back(how: str) -> str:
    if how == "raises":
        raise ValueError("in the fork")
    if how == "exits":
        sys.exit(ENDINGS[how])
    return "from the fork"


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forks(job: Job) -> object:
    pid = os.fork()
    return exit_code(pid) if pid else come_back(job.payload["how"])


async def forks_on_loop(job: Job) -> object:
    pid = os.fork()
    return await asyncio.to_thread(exit_code, pid) if pid else come_back(job.payload["how"])


async def forks_in_task(job: Job) -> object:
    return await asyncio.create_task(forks_on_loop(job))


async def waits_in_its_fork(job: Job) -> object:
    """Returns to the event loop in the fork."""
    never = asyncio.get_running_loop().create_future()
    pid = os.fork()
    return await (asyncio.to_thread(exit_code, pid) if pid else never)


def leaves_a_fork_behind(job: Job) -> int:
    pid = os.fork()
    if not pid:
        while not Path(job.payload["gate"]).exists():
            time.sleep(0.01)
        Path(job.payload["back"]).touch()
        come_back(job.payload["how"])
    return pid


def numbered(job: Job) -> int:
    number: int = job.payload["number"]
    if number % 2:
        raise Permanent("ODD", f"number {number}")
    return number


def reports_from_its_fork(job: Job) -> int:
    pid = os.fork()
    if not pid:
        job.progress({"from": "the fork"})
        os._exit(0)
    return exit_code(pid)


def _pipes() -> Iterator[Connection]:
    return (each for each in gc.get_objects() if isinstance(each, Connection) and not each.closed and each.writable)


def answers_for_another(job: Job) -> None:
    """Sends an outcome under the ID of another attempt."""
    for pipe in _pipes():
        pipe.send_bytes(bytes(32) + pickle.dumps(Ended(Succeeded())))
    time.sleep(60)


def square(number: int) -> int:
    return number * number


def computes_in_a_pool(job: Job) -> list[int]:
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(square, [1, 2, 3]))


def _say_and_sleep(begun: Connection) -> None:
    begun.send("begun")
    time.sleep(60)


def terminates_a_fork(job: Job) -> int | None:
    fork = multiprocessing.get_context("fork")
    heard, begun = fork.Pipe()
    process = fork.Process(target=_say_and_sleep, args=(begun,))
    process.start()
    heard.recv()
    process.terminate()
    process.join()
    return process.exitcode


def register(app: Holdfast) -> None:
    for function in (forks, forks_on_loop, forks_in_task, waits_in_its_fork):
        app.handler(function.__name__, attempts=1)(function)


def handles_signals(job: Job) -> list[str]:
    """Tell how a fork handles the signals that its process handles, and that the process still handles them."""
    heard, begun = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(begun, _signal_handlers())
        os._exit(0)
    exit_code(pid)
    return [os.read(heard, 100).decode(), _signal_handlers().decode()]


def _signal_handlers() -> bytes:
    handlers = {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return b"default" if handlers == {signal.SIG_DFL} and not masked else b"own" if not masked else b"masked"


if __name__ == "__main__":
    # A program that handles stop signals, and a fork of it that SIGTERM must still end.
    from holdfast.hosting.stop_signals import StopSignals

    with StopSignals() as signals:
        heard, begun = os.pipe()
        pid = os.fork()
        if not pid:
            os.write(begun, b"!")
            time.sleep(60)
        os.read(heard, 1)
        os.kill(pid, signal.SIGTERM)
        sys.stdout.write(f"{exit_code(pid)} {bool(signals.received)}")
