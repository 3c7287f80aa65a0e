"""Handlers of the real worker processes, importable for process isolation.

Each writes a line to the journal, a file that survives the death of the process.
"""

import asyncio
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import Holdfast, RunningJob
from tests.worker import children, forking

Job = RunningJob[dict[str, Any]]


@dataclass
class Gate:
    name: str


def note(job: RunningJob[Any], what: str) -> None:
    line = f"{what} {job.id} {job.fence} {job.attempt} {os.getpid()} {time.monotonic()}\n"
    path = Path(os.environ["HOLDFAST_TEST_FOLDER"], "journal")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def is_open(name: str) -> bool:
    """A gate is a file that the test creates to let a handler continue."""
    return Path(os.environ["HOLDFAST_TEST_FOLDER"], name).exists()


async def quick(job: Job) -> None:
    note(job, "start")
    await asyncio.sleep(job.payload.get("seconds", 0))
    note(job, "end")


async def gated(job: RunningJob[Gate]) -> str:
    note(job, "start")
    try:
        while not is_open(job.payload.name):  # noqa: ASYNC110 - the signal comes from another process
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(job, "canceled")
        raise
    note(job, "end")
    return str(os.getpid())


def gated_thread(job: RunningJob[Gate]) -> None:
    note(job, "start")
    while not is_open(job.payload.name):
        time.sleep(0.01)
    note(job, "end")


def gated_child(job: RunningJob[Gate]) -> None:
    gated_thread(job)


async def blocks(job: RunningJob[Gate]) -> None:
    """Blocks the event loop."""
    gated_thread(job)


async def stubborn(job: RunningJob[Gate]) -> None:
    """Swallows every cancellation."""
    note(job, "start")
    while not is_open(job.payload.name):
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            note(job, "swallowed")
    note(job, "end")


def regex(job: Job) -> None:
    """Holds the GIL forever, so no other thread of the process can run."""
    note(job, "start")
    re.match(r"(a+)+$", "a" * 60 + "b")
    note(job, "end")


def build(url: str) -> Holdfast:
    app = Holdfast(url)
    app.handler("quick")(quick)
    app.handler("gated")(gated)
    app.handler("gated_thread")(gated_thread)
    app.handler("gated_child", isolation="process")(gated_child)
    app.handler("starts_processes", isolation="process")(children.starts_processes)
    app.handler("starts_processes_and_runs_away", isolation="process")(children.starts_processes_and_runs_away)
    app.handler("blocks")(blocks)
    app.handler("starts_multiprocessing", isolation="process")(children.starts_multiprocessing)
    app.handler("stubborn")(stubborn)
    forking.register(app)
    app.handler("regex", isolation="process")(regex)
    return app
