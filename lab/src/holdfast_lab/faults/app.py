"""The handlers under test. Each notes its start, effect and end with the recorder, which no fault touches."""

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from holdfast import Holdfast, RunningJob
from holdfast.domain.lifecycle import DEFAULT_CRASHES
from holdfast.domain.retry import exponential
from holdfast_lab.faults.bad_ends import badly
from holdfast_lab.faults.record import DONE, RECORD, Record, What
from holdfast_lab.faults.sql_files import fault_statement

WORK, EFFECT, THREAD, BLOCK, SPIN, HOLD_GIL, EXIT, SEGFAULT, KILL, FLAKY, BAD = (
    "fault.work",
    "fault.effect",
    "fault.thread",
    "fault.block",
    "fault.spin",
    "fault.hold_gil",
    "fault.exit",
    "fault.segfault",
    "fault.kill",
    "fault.flaky",
    "fault.bad",
)
NOBODYS = "fault.nobodys"
"""A kind that only the workers of `other_app` handle."""
LETTER = "fault.letter"
"""A kind that only `older_app` and `newer_app` handle, each in a different version."""
GUILTY = {EXIT: 1, SEGFAULT: 1, KILL: DEFAULT_CRASHES}
"""Kinds that kill their worker, and how many workers each may kill while alone. Lost leases may make them dead."""
ELSEWHERE = frozenset({THREAD, HOLD_GIL})
"""Kinds whose handler runs outside the event loop. It may end well after its worker gave up on it."""
UNSTOPPABLE = frozenset({THREAD, BLOCK, SPIN})
"""Kinds whose handler keeps running when it is told to stop."""
EFFECTIVE = frozenset({WORK, THREAD, BLOCK, SPIN, HOLD_GIL, FLAKY, LETTER})
"""Kinds that note their effect. The effect of EFFECT is a row instead."""
STORE, SCHEMA = "FAULTS_STORE", "FAULTS_SCHEMA"

app = Holdfast()
record = Record.of_environment() if os.environ.get("FAULTS_RECORD") else None

Job = RunningJob[dict[str, Any]]


@contextmanager
def attempt(job: Job) -> Iterator[None]:
    """Note one attempt: its start, and how it ended."""
    _note_start(job)
    try:
        yield
    except BaseException as error:
        _note(What.END, job, how=type(error).__name__)
        raise
    _note(What.END, job, how=DONE)


def _note_start(job: Job) -> None:
    """`of`: how many attempts may fail. `claim`: unique to each claim of a job."""
    claim = str(job.lease.claim)
    _note(What.START, job, attempt=job.attempt, losses=job.losses, of=job.max_attempts, claim=claim)


def _note(what: What, job: Job, **more: Any) -> None:  # noqa: ANN401
    if record is not None:
        record.note(what, job.id, job.fence, **more)


def _seconds(job: Job) -> float:
    """How long the handler takes. `again`: at every start but the first, to keep a case from waiting that long."""
    name = "again" if "again" in job.payload and _has_started_before(job) else "seconds"
    return float(job.payload.get(name, 0))


def _has_started_before(job: Job) -> bool:
    """The attempt number cannot answer this: an interrupted attempt does not count."""
    try:
        Path(os.environ[RECORD]).with_name(f"started-{job.id}").touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


async def deliver(job: RunningJob[Any], recipients: list[str], seconds: float) -> dict[str, int]:
    """The work of all handlers of LETTER."""
    with attempt(job):
        await asyncio.sleep(seconds * len(recipients))
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(WORK)
async def work(job: Job) -> dict[str, int]:
    with attempt(job):
        if seconds := _seconds(job):
            await asyncio.sleep(seconds)
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(EFFECT)
async def effect(job: Job) -> None:
    """Its effect is a row that is committed together with its end."""
    with attempt(job):
        # No prepared statements, because the store may be behind a pooler.
        connection = await asyncpg.connect(os.environ[STORE], timeout=5, command_timeout=5, statement_cache_size=0)
        try:
            async with connection.transaction():
                if seconds := _seconds(job):
                    await asyncio.sleep(seconds)
                await connection.execute(fault_statement("add_effect", os.environ[SCHEMA]), job.id, job.fence)
                await job.finish_in(connection, {"fence": job.fence})
        finally:
            connection.terminate()


@app.handler(THREAD)
def in_a_thread(job: Job) -> dict[str, int]:
    with attempt(job):
        time.sleep(_seconds(job))
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(BLOCK)
async def block(job: Job) -> dict[str, int]:
    """Blocks the event loop."""
    with attempt(job):
        time.sleep(_seconds(job))  # noqa: ASYNC251 - that is the fault
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(SPIN)
async def spin(job: Job) -> dict[str, int]:
    """Blocks the event loop with Python code, so other threads rarely get the interpreter."""
    with attempt(job):
        until = time.monotonic() + _seconds(job)
        while time.monotonic() < until:
            sum(range(1000))
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(HOLD_GIL, isolation="process")
def hold_gil(job: Job) -> dict[str, int]:
    """Never releases the interpreter: PyDLL calls C without releasing the GIL."""
    with attempt(job):
        ctypes.PyDLL(None).usleep(int(_seconds(job) * 1_000_000))
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(EXIT, crashes=GUILTY[EXIT])
async def leave(job: Job) -> None:
    _note_start(job)
    _note(What.KILL, job)
    os._exit(3)


@app.handler(SEGFAULT, crashes=GUILTY[SEGFAULT])
async def crash(job: Job) -> None:
    _note_start(job)
    _note(What.KILL, job)
    ctypes.string_at(0)


@app.handler(KILL)
async def kill(job: Job) -> None:
    _note_start(job)
    _note(What.KILL, job)
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler(FLAKY, attempts=10, backoff=exponential(base="100ms", max="100ms"))
async def flaky(job: Job) -> dict[str, int]:
    """Fails as often as its payload says."""
    with attempt(job):
        if job.attempt <= int(job.payload.get("failures", 1)):
            raise RuntimeError("not yet")
        _note(What.EFFECT, job)
        return {"fence": job.fence}


@app.handler(BAD, attempts=1)
async def bad(job: Job) -> object:
    """Ends in the bad way that its payload names, immediately or after a wait."""
    with attempt(job):
        if seconds := _seconds(job):
            await asyncio.sleep(seconds)
        return badly(str(job.payload.get("how", "")), job)
