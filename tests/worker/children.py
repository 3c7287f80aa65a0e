"""Importable handlers for process isolation, some of which misbehave."""

import ctypes
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import RunningJob

Job = RunningJob[dict[str, Any]]

seen_by: ContextVar[str] = ContextVar("seen_by", default="nobody")


@dataclass
class Letter:
    recipients: list[str]


@dataclass
class Page:
    number: int


class Unpicklable(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def tell_pid(job: Job) -> int:
    return os.getpid()


async def tell_pid_async(job: Job) -> int:
    return os.getpid()


def exits_at_once(job: Job) -> None:
    os._exit(7)


def segfaults(job: Job) -> None:
    ctypes.string_at(0)


def kills_itself(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exits(job: Job) -> None:
    sys.exit(3)


def raises_unpicklable(job: Job) -> None:
    raise Unpicklable("cannot travel")


def returns_much(job: Job) -> str:
    return "x" * int(job.payload["size"])


def reports(job: Job) -> None:
    threads = [threading.Thread(target=job.progress, args=({"thread": number},)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    job.progress({"done": True})
    gate = Path(job.payload["gate"])
    while not gate.exists():
        time.sleep(0.01)


def reports_after_its_end(job: Job) -> None:
    """Leaves a thread behind that keeps reporting during the next attempt."""

    def go_on() -> None:
        while True:
            job.progress({"from": "a ghost"})
            time.sleep(0.005)

    threading.Thread(target=go_on, daemon=True).start()


def sleeps(job: Job) -> None:
    Path(job.payload["pid"]).write_text(str(os.getpid()))
    time.sleep(600)


def typed(job: RunningJob[Page]) -> int:
    return job.payload.number


def names_recipients(job: RunningJob[Letter]) -> list[str]:
    return job.payload.recipients


def sees_context(job: Job) -> str:
    seen = seen_by.get()
    seen_by.set(str(job.id))
    return seen


def tells_deadline(job: Job) -> list[str]:
    return [job.deadline.isoformat(), job.tenant, job.correlation_id]


def _fork(seconds: float, *, own_session: bool = False) -> int:
    """Fork a process that has every descriptor open, including the pipe to the worker."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        if own_session:
            os.setsid()
        os.write(told, b".")
        time.sleep(seconds)
        os._exit(0)
    os.read(ready, 1)
    return pid


def leaves_a_daemon_behind(job: Job) -> None:
    Path(job.payload["pids"]).write_text(str(_fork(20, own_session=True)))
    os._exit(9)


def starts_processes(job: Job) -> None:
    """Starts a program and a fork."""
    program = subprocess.Popen(["/bin/sleep", "600"])
    Path(job.payload["pids"]).write_text(f"{os.getpid()} {program.pid} {_fork(600)}")
    time.sleep(600)


def starts_processes_and_exits(job: Job) -> None:
    program = subprocess.Popen(["/bin/sleep", "600"])
    Path(job.payload["pids"]).write_text(f"{os.getpid()} {program.pid} {_fork(600)}")
    os._exit(9)


def starts_processes_and_runs_away(job: Job) -> None:
    """Holds the GIL forever, so no other thread of the process can run."""
    program = subprocess.Popen(["/bin/sleep", "600"])
    Path(job.payload["pids"]).write_text(f"{os.getpid()} {program.pid} {_fork(600)}")
    re.match(r"(a+)+$", "a" * 60 + "b")


def starts_multiprocessing(job: Job) -> None:
    started = (
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)),
        multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)),
    )
    for process in started:
        process.start()
    Path(job.payload["pids"]).write_text(" ".join(map(str, [os.getpid(), *(each.pid for each in started)])))
    time.sleep(600)


def hidden_by_its_decorator(job: Job) -> None:
    """The module rebinds this name to another function."""


unreachable = hidden_by_its_decorator
hidden_by_its_decorator = tell_pid  # type: ignore[assignment]


def waits_for_gate(job: Job) -> int:
    gate = Path(job.payload["gate"])
    while not gate.exists():
        time.sleep(0.01)
    return os.getpid()


_hoarded: list[bytes] = []


def hoards(job: Job) -> int:
    """Allocates that much memory and never frees it."""
    _hoarded.append(b"x" * (int(job.payload["megabytes"]) << 20))
    return os.getpid()


def terminates_a_program(job: Job) -> int:
    program = subprocess.Popen(["/bin/sleep", "600"])
    program.terminate()
    return program.wait()


def logs(job: Job) -> None:
    log = logging.getLogger("shop")
    log.debug("not wanted")
    log.info("counting %d", 3, extra={"table": Page(7)})
    try:
        raise LookupError("no such page")
    except LookupError:
        log.exception("went wrong")


def logs_from_a_thread_after_its_end(job: Job) -> None:
    def later() -> None:
        time.sleep(0.2)
        logging.getLogger("shop").warning("after the end")

    threading.Thread(target=later).start()
