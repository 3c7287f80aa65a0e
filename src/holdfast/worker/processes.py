"""Handlers in processes of their own: they can be killed at the timeout, and their death fails one attempt only.

Each child serves one attempt at a time over its own pipe, so a killed child can leave no lock behind. It leads a
process group: what ends the child ends the programs that its handlers started too, unless they left the group.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from holdfast.domain.failures import Failures, describe, outcome_of_value
from holdfast.domain.handlers import CURRENT_JOB, HandlerFunction, RunningJob
from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json, decode
from holdfast.domain.outcome import Outcome, Retried
from holdfast.worker.guard import Guard

_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_LEFT_TO_THE_WORKER = (signal.SIGINT, signal.SIGTERM)


class ProcessLimits(NamedTuple):
    """Of the processes for handlers with isolation="process"."""

    most: int
    """At once."""
    jobs: int | None = None
    """Attempts that one serves before another takes its place; None: any number."""
    megabytes: int | None = None
    """Resident memory with which one serves another attempt; None: any amount."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a child needs. The payload travels as JSON and gets its type there."""

    function: HandlerFunction
    payload_type: Any
    job: RunningJob[Json]
    failures: Failures
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Started:
    """The child runs and has imported what it needs: from now on the handler's time counts."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """The handler is about to finish its job in a transaction of its own."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    finish_requested: bool
    is_worn: bool = False
    """The child has served enough: another one is to take its place."""


class Processes:
    """A pool of children, started when first needed and kept for the next attempt until they are worn."""

    def __init__(self, limits: ProcessLimits) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._limits = limits
        self._free = asyncio.Semaphore(limits.most)
        self._idle: list[_Child] = []
        self._closed = False
        self._guard = Guard()
        self._threads = ThreadPoolExecutor(max_workers=limits.most, thread_name_prefix="holdfast-process")

    async def run(
        self,
        attempt: Attempt,
        has_process: Callable[[], None],
        started: Callable[[], None],
        report: Callable[[Json], None],
        finishing: Callable[[], None],
        set_kill: Callable[[Callable[[], None]], None],
    ) -> Ended:
        """Waits for a process to be free, then tells `has_process`; `started` is told when the handler begins."""
        async with self._free:
            has_process()
            return await self._serve(attempt, started, report, finishing, set_kill)

    async def _serve(
        self,
        attempt: Attempt,
        started: Callable[[], None],
        report: Callable[[Json], None],
        finishing: Callable[[], None],
        set_kill: Callable[[Callable[[], None]], None],
    ) -> Ended:
        loop = asyncio.get_running_loop()
        child = self._idle_child() or await self._start()
        set_kill(child.kill)
        call = loop.run_in_executor(self._threads, child.serve, attempt, started, report, finishing)
        try:
            ended = await asyncio.shield(call)
        except asyncio.CancelledError:
            child.kill()
            # The thread is over as soon as the pipe breaks, so that no thread outlives its attempt.
            with contextlib.suppress(asyncio.CancelledError):
                await call
            raise
        if child.is_alive:
            if ended.is_worn:
                child.kill()
            self._idle.append(child)
        return ended

    async def _start(self) -> "_Child":
        dead, self._idle = self._idle, []
        starting = asyncio.get_running_loop().run_in_executor(self._threads, self._new_child, dead)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._keep)
            raise

    def _new_child(self, dead: "list[_Child]") -> "_Child":
        """In a thread: both take their time, the end of a child that had much memory too."""
        for child in dead:
            child.end()
        return _Child(self._context, self._guard, self._limits)

    def _idle_child(self) -> "_Child | None":
        """None if all are dead: they are ended with the start of the next one."""
        usable = next((child for child in reversed(self._idle) if child.is_usable), None)
        if usable is not None:
            self._idle.remove(usable)
        return usable

    def _keep(self, starting: "asyncio.Future[_Child]") -> None:
        if starting.cancelled() or starting.exception() is not None:
            return
        if self._closed:
            starting.result().end()
        else:
            self._idle.append(starting.result())

    def close(self) -> None:
        self._closed = True
        for child in self._idle:
            child.end()
        self._idle.clear()
        self._guard.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Child:
    def __init__(self, context: multiprocessing.context.SpawnContext, guard: Guard, limits: ProcessLimits) -> None:
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_main, args=(theirs, limits), daemon=True)
        self._guard = guard
        self._is_gone = False
        self.is_alive = True
        with _signals_held():
            self._process.start()
        theirs.close()
        self._group = self._process.pid or 0
        try:
            guard.watch(self._group)
        except BaseException:
            self.end()
            raise

    def serve(
        self,
        attempt: Attempt,
        started: Callable[[], None],
        report: Callable[[Json], None],
        finishing: Callable[[], None],
    ) -> Ended:
        """Blocks until the child has an outcome or is dead."""
        try:
            self._pipe.send(attempt)
            while True:
                message = self._next_message()
                match message:
                    case Ended():
                        return message
                    case Started():
                        started()
                    case Finishing():
                        finishing()
                    case _:
                        report(message)
        except (EOFError, OSError):
            return Ended(Retried(_death(self.end())), finish_requested=False)
        except BaseException:
            # The attempt cannot be pickled; whatever part of it went out, the child is of no more use.
            self.end()
            raise

    def _next_message(self) -> "Started | Finishing | Ended | Json":
        # A process that the handler forked holds the pipe open too, so its end alone does not tell that ours is dead.
        while not self._pipe.poll(_LOOK_SECONDS):
            if not self._process.is_alive() and not self._pipe.poll():
                raise EOFError
        message: Started | Finishing | Ended | Json = self._pipe.recv()
        return message

    @property
    def is_usable(self) -> bool:
        return self.is_alive and self._process.is_alive()

    def kill(self) -> None:
        """And its group, which it has from its first step on; before that nothing of a handler has run."""
        self.is_alive = False
        if self._is_gone:
            # Its number may be another's by now.
            return
        self._process.kill()
        # EPERM: on macOS of a group that is all zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGKILL)

    def end(self) -> int | None:
        """Kill it and wait until it is gone, so that neither a zombie nor a descriptor stays."""
        self.kill()
        self._is_gone = True
        self._process.join()
        self._pipe.close()
        self._guard.forget(self._group)
        return self._process.exitcode


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """For a child that starts: until it leads a session, what is sent to the worker's group reaches it too."""
    # Started by the first child otherwise, it would let the signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_THE_WORKER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(exit_code: int | None) -> JobError:
    if exit_code is not None and exit_code < 0:
        try:
            how = f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            how = f"was killed by signal {-exit_code}"
    else:
        how = f"exited with code {exit_code}"
    return JobError(code="PROCESS_DIED", type="ProcessDied", message=f"the handler's process {how}")


def _main(pipe: Connection, limits: ProcessLimits) -> None:
    os.setsid()
    # A terminal's Ctrl-C and a supervisor's SIGTERM are the worker's to decide about. Those to its group came while
    # this one was starting; systemd signals every process, whatever its group. A handler that does nothing, because
    # SIG_IGN would be inherited by the programs that a job starts: it could not terminate them.
    for number in _LEFT_TO_THE_WORKER:
        signal.signal(number, _leave_to_the_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_THE_WORKER)
    _die_with_parent()
    served = 0
    while True:
        outbox = _Outbox(pipe)
        try:
            attempt: Attempt = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - what was sent cannot be imported here
            ended = Ended(Retried(describe(error, "ERROR")), finish_requested=False)
        else:
            pipe.send(Started())
            # A context of its own, so that nothing that a handler sets there meets the next one.
            ended = contextvars.copy_context().run(_run, attempt, outbox)
        served += 1
        outbox.end(replace(ended, is_worn=_is_worn(limits, served)))


def _is_worn(limits: ProcessLimits, served: int) -> bool:
    return (limits.jobs is not None and served >= limits.jobs) or (
        limits.megabytes is not None and _resident_bytes() > limits.megabytes << 20
    )


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        # Elsewhere there is only the most that it ever was, which macOS counts in bytes.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
    return pages * os.sysconf("SC_PAGE_SIZE")


def _leave_to_the_worker(number: int, frame: object) -> None:
    pass


class _Outbox:
    """What one attempt sends to the worker: progress from any of its threads, and nothing after its end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._ended = False

    def report(self, progress: Json) -> None:
        self._send(progress)

    def finishing(self) -> None:
        self._send(Finishing())

    def _send(self, message: Json | Finishing) -> None:
        with self._lock:
            if not self._ended:
                self._pipe.send(message)

    def end(self, ended: Ended) -> None:
        with self._lock:
            self._ended = True
            self._pipe.send(ended)


def _die_with_parent() -> None:
    # Nobody renews the leases of a worker that was killed. The guard ends its children too, but on Linux the kernel
    # does it even if the guard is dead.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _run(attempt: Attempt, outbox: _Outbox) -> Ended:
    job: RunningJob[Any] = attempt.job
    job._report, job._finishing = outbox.report, outbox.finishing
    job.deadline = datetime.now(UTC) + attempt.timeout
    payload_type = attempt.payload_type
    CURRENT_JOB.set(job)
    try:
        if payload_type is None:
            job.payload = decode(job.payload)
        elif payload_type is not Json:
            job.payload = TypeAdapter(payload_type).validate_json(job.payload)
        value = attempt.function(job)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        outcome = outcome_of_value(value)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
        outcome = attempt.failures.outcome_of(error)
    return Ended(outcome, job.finish_requested)


async def _awaited(value: Any) -> Any:  # noqa: ANN401
    return await value
