"""Handlers in child processes: they can be killed at the timeout, and their death fails only one attempt.

Each child serves one attempt at a time over its own pipe, so a killed child cannot leave a lock behind. It leads a
process group, so that ending the child also ends what its handlers started, unless that left the group.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.domain.failures import Failures, describe, outcome_of_value
from holdfast.domain.framework import Framework
from holdfast.domain.handlers import CURRENT_JOB, HandlerFunction, RunningJob
from holdfast.domain.job import JobError, Lease
from holdfast.domain.json_text import Json
from holdfast.domain.kinds import read_payload
from holdfast.domain.lifecycle import Move
from holdfast.domain.outcome import Outcome, Retried, Snoozed
from holdfast.logs.records import get_logger
from holdfast.worker.forks import end_fork, end_forks_in_loop, ended_in_forks, handle_signal, this_process
from holdfast.worker.guard import Guard
from holdfast.worker.home import Home
from holdfast.worker.hooks import OpenState, tidied
from holdfast.worker.process_logs import Levels, Logged, levels, send_logs

log = get_logger("holdfast.worker")

_LOOK_SECONDS = 1.0
_LEAVE_SECONDS = 6.0
"""How long a child may take to leave the app's lifespan, which is canceled a little earlier."""
_LIFESPAN_PAUSE = timedelta(seconds=10)
_PR_SET_PDEATHSIG = 1
_LEFT_TO_THE_WORKER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAME_BYTES = 32
_NO_NAME = bytes(_NAME_BYTES)


class ProcessLimits(NamedTuple):
    """Limits for the processes of handlers with isolation="process"."""

    most: int
    """How many run at once."""
    jobs: int | None = None
    """How many attempts one process serves before it is replaced; None means no limit."""
    megabytes: int | None = None
    """The resident memory above which a process is replaced; None means no limit."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a child needs to run an attempt. The payload is sent as JSON and converted to its type in the child."""

    function: HandlerFunction
    payload_type: Any
    job: RunningJob[Json]
    failures: Failures
    timeout: timedelta
    open_state: OpenState | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The child is running and has imported what it needs. The handler's timeout starts now."""


@dataclass(frozen=True, slots=True)
class Finishing:
    """The handler is about to finish its job in its own transaction."""


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    finish_requested: Move | None = None
    is_worn: bool = False
    """The child has reached its limits and should be replaced."""
    trouble: str = ""
    """Why the app's lifespan could not be opened. This is not the job's fault."""


class _OtherAttemptError(Exception):
    """A message arrived that does not belong to the child's current attempt."""


class Processes:
    """A pool of child processes, started when needed and reused until they reach their limits."""

    def __init__(self, limits: ProcessLimits, framework: Framework | None = None) -> None:
        self._framework = framework
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
        """Wait until a process is free, then call `has_process`. `started` is called when the handler begins."""
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
            # The thread ends as soon as the pipe breaks. Wait for it, so that no thread outlives its attempt.
            with contextlib.suppress(asyncio.CancelledError):
                await call
            raise
        if child.is_alive:
            if ended.is_worn:
                child.retire()
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
        """Runs in a thread, because both steps are slow, even the end of a child that used a lot of memory."""
        _end_all(dead)
        return _Child(self._context, self._guard, self._limits, self._framework)

    def _idle_child(self) -> "_Child | None":
        """A usable idle child, or None. Dead ones are cleaned up when the next child starts."""
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
        _end_all(self._idle)
        self._idle.clear()
        self._guard.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _end_all(children: "list[_Child]") -> None:
    """End these children. They leave their lifespans concurrently."""
    for child in children:
        child.retire()
    deadline = time.monotonic() + _LEAVE_SECONDS
    for child in children:
        child.wait_until_left(deadline - time.monotonic())
        child.end()


class _Child:
    def __init__(self, context: SpawnContext, guard: Guard, limits: ProcessLimits, framework: Framework | None) -> None:
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, limits, levels(), framework)
        self._process: BaseProcess = context.Process(target=_main, args=arguments, daemon=True)
        self._guard = guard
        self._is_gone = self._has_lifespan = False
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
            self._has_lifespan |= attempt.open_state is not None
            name = _name_of(attempt.job.lease)
            self._pipe.send_bytes(name + pickle.dumps(attempt))
            while True:
                message = self._next_message(name)
                match message:
                    case Ended():
                        return message
                    case Started():
                        started()
                    case Finishing():
                        finishing()
                    case Logged():
                        message.handle()
                    case _:
                        report(message)
        except (EOFError, OSError):
            return Ended(Retried(_died(_death(self.end()))))
        except _OtherAttemptError:
            # Later messages could not be trusted either.
            self.end()
            return Ended(Retried(_died("answered for another attempt and was killed")))
        except BaseException:
            # For example, the attempt cannot be pickled. Part of it may have been sent, so the child is unusable.
            self.end()
            raise

    def _next_message(self, name: bytes) -> "Started | Finishing | Ended | Logged | Json":
        # Poll, because a process that the handler forked keeps the pipe open even after our child is dead.
        while not self._pipe.poll(_LOOK_SECONDS):
            if not self._process.is_alive() and not self._pipe.poll():
                raise EOFError
        arrived = self._pipe.recv_bytes()
        message: Started | Finishing | Ended | Logged | Json = pickle.loads(arrived[_NAME_BYTES:])  # noqa: S301 - our child's
        if arrived[:_NAME_BYTES] != name and not isinstance(message, Logged):
            raise _OtherAttemptError
        return message

    @property
    def is_usable(self) -> bool:
        return self.is_alive and self._process.is_alive()

    def kill(self) -> None:
        """Kill the child and its process group. The child leads a group before it runs any handler code."""
        self.is_alive = False
        if self._is_gone:
            # Its pid may have been reused by now.
            return
        self._process.kill()
        # macOS returns EPERM for a group that consists only of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGKILL)

    def retire(self) -> None:
        """Let it leave the app's lifespan, if it has one."""
        if self.is_alive and self._has_lifespan:
            self.is_alive = False
            self._pipe.close()
        elif self.is_alive:
            self.kill()

    def wait_until_left(self, seconds: float) -> None:
        """Wait on the sentinel and do not reap the child, so that its pid is not reused before `end`."""
        if self._pipe.closed and not self._is_gone and seconds > 0:
            wait([self._process.sentinel], seconds)

    def end(self) -> int | None:
        """Kill the child and wait until it is gone, so that no zombie and no file descriptor is left."""
        self.kill()
        self._is_gone = True
        self._process.join()
        self._pipe.close()
        self._guard.forget(self._group)
        return self._process.exitcode


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals while a child starts: until it leads its own session, the worker's group signals reach it too."""
    # Otherwise the first child would start the tracker, which unblocks the signals again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_THE_WORKER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _name_of(lease: Lease) -> bytes:
    return lease.id.bytes + lease.claim.bytes


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return f"exited with code {exit_code}"


def _died(how: str) -> JobError:
    return JobError(code="PROCESS_DIED", type="ProcessDied", message=f"the handler's process {how}")


def _leave_to_the_worker(number: int, frame: object) -> None:
    """Only the worker reacts to a terminal's Ctrl-C and a supervisor's SIGTERM."""


def _main(pipe: Connection, limits: ProcessLimits, log_levels: Levels, framework: Framework | None) -> None:
    os.setsid()
    # Signals to the worker's group may have arrived while this process was starting, and systemd signals every process
    # in any group. The signal handler is empty, because programs that a job starts would inherit SIG_IGN, and the job
    # could not terminate them.
    for number in _LEFT_TO_THE_WORKER:
        if signal.getsignal(number) is not signal.SIG_IGN:
            handle_signal(number, _leave_to_the_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_THE_WORKER)
    _die_with_parent()
    # The worker treats this process as a daemon. A daemon may not have children, but a handler's processes need no such
    # limit: they are in the group, which ends with this process and with the worker.
    multiprocessing.current_process().daemon = False
    wire, home = _Wire(pipe), Home()
    send_logs(wire.log, log_levels)
    served = 0
    while True:
        try:
            arrived = pipe.recv_bytes()
        except EOFError:
            home.leave()
            return
        outbox = _Outbox(wire, arrived[:_NAME_BYTES])
        try:
            if framework is not None:
                framework.set_up()
            attempt: Attempt = pickle.loads(arrived[_NAME_BYTES:])  # noqa: S301 - from our worker
        except Exception as error:  # noqa: BLE001 - for example, the handler cannot be imported here
            ended = Ended(Retried(describe(error, "ERROR")))
        else:
            ended = _serve(attempt, outbox, home, framework)
        served += 1
        outbox.end(replace(ended, is_worn=home.is_broken or _is_worn(limits, served)))


def _serve(attempt: Attempt, outbox: "_Outbox", home: Home, framework: Framework | None) -> Ended:
    process = this_process()
    try:
        try:
            home.enter(attempt.open_state, attempt.job.kind)
        finally:
            end_fork(process)
    except BaseException as error:  # noqa: BLE001 - in the worker's process, it would end the program
        trouble = describe(error, "ERROR")
        return Ended(Snoozed(_LIFESPAN_PAUSE), trouble=f"{trouble.summary}\n{trouble.traceback}")
    outbox.started()
    # A separate context, so that a handler's context variables do not leak into the next attempt.
    return contextvars.copy_context().run(_run, attempt, outbox, home, framework)


def _is_worn(limits: ProcessLimits, served: int) -> bool:
    return (limits.jobs is not None and served >= limits.jobs) or (
        limits.megabytes is not None and _resident_bytes() > limits.megabytes << 20
    )


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        # Outside Linux, only the peak value is available, which macOS reports in bytes.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Wire:
    """The pipe to the worker, shared by all threads of the process. A process that a handler forked sends nothing:
    otherwise two processes would write to one pipe.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._process = this_process()
        self._lock = threading.Lock()

    @property
    def is_forked(self) -> bool:
        """Checked before taking any lock, because another thread may have held the lock during the fork."""
        return this_process() != self._process

    def send(self, name: bytes, message: Started | Finishing | Ended | Logged | Json) -> None:
        sent = name + pickle.dumps(message)
        with self._lock:
            self._pipe.send_bytes(sent)

    def log(self, record: Logged) -> None:
        """Send a log record. It carries no attempt's name, because the record itself says what it belongs to."""
        if not self.is_forked:
            self.send(_NO_NAME, record)


class _Outbox:
    """Sends one attempt's messages to the worker under its name: progress from any of its threads, and nothing after
    its end."""

    def __init__(self, wire: _Wire, name: bytes) -> None:
        self._wire = wire
        self._name = name
        self._lock = threading.Lock()
        self._ended = False

    def started(self) -> None:
        self._send(Started())

    def report(self, progress: Json) -> None:
        self._send(progress)

    def finishing(self) -> None:
        self._send(Finishing())

    def end(self, ended: Ended) -> None:
        self._send(ended)

    def _send(self, message: Started | Finishing | Ended | Json) -> None:
        if self._wire.is_forked:
            return
        with self._lock:
            if not self._ended:
                self._ended = isinstance(message, Ended)
                self._wire.send(self._name, message)


def _die_with_parent() -> None:
    # Nothing renews the leases of a killed worker, so its children must end. The guard ends them too, but on Linux the
    # kernel does it even if the guard is dead.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _run(attempt: Attempt, outbox: _Outbox, home: Home, framework: Framework | None) -> Ended:
    job: RunningJob[Any] = attempt.job
    job._report, job._finishing = outbox.report, outbox.finishing
    job.state = home.state
    job.deadline = datetime.now(UTC) + attempt.timeout
    CURRENT_JOB.set(job)
    try:
        job.payload = read_payload(attempt.payload_type, job.payload)
        process = this_process()
        try:
            value = tidied(framework, attempt.function)(job)
            if inspect.isawaitable(value):
                value = home.run(_awaited(value))
        finally:
            end_fork(process)
        outcome = outcome_of_value(value)
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
        outcome = attempt.failures.outcome_of(error)
    return Ended(outcome, job.finish_requested)


async def _awaited(value: Any) -> Any:  # noqa: ANN401
    end_forks_in_loop()
    # Also here, because the end of the event loop closes what a fork shares with this process.
    return await ended_in_forks(value)
