"""What runs in a handler's process, and the messages between it and its worker (processes.py)."""

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
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.domain.failures import Failures, describe, outcome_of_value
from holdfast.domain.framework import Framework
from holdfast.domain.handlers import CURRENT_JOB, HandlerFunction, RunningJob
from holdfast.domain.json_text import Json
from holdfast.domain.kinds import read_payload
from holdfast.domain.lifecycle import Move
from holdfast.domain.outcome import Outcome, Unstarted
from holdfast.worker.forks import end_fork, end_forks_in_loop, ended_in_forks, handle_signal, this_process
from holdfast.worker.home import Home
from holdfast.worker.hooks import OpenState, tidied
from holdfast.worker.process_logs import Levels, Logged, send_logs

NOT_STARTED = "NOT_STARTED"
LEFT_TO_THE_WORKER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAME_BYTES = 32
"""Each message begins with the name of its attempt."""
_NO_NAME = bytes(NAME_BYTES)
_PR_SET_PDEATHSIG = 1


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
    """What a child needs to run an attempt. The payload is sent as JSON and converted to its type in the child.

    The job's own content, its payload and headers, follows in a second message, once the child has started. So nothing
    that goes wrong before can be the job's fault: until then, the child has read only names of bounded length and what
    the app itself refers to, such as the handler. If the content makes the child die, the attempt counts.
    """

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


def _leave_to_the_worker(number: int, frame: object) -> None:
    """Only the worker reacts to a terminal's Ctrl-C and a supervisor's SIGTERM."""


def run_child(pipe: Connection, limits: ProcessLimits, log_levels: Levels, framework: Framework | None) -> None:
    os.setsid()
    # Signals to the worker's group may have arrived while this process was starting, and systemd signals every process
    # in any group. The signal handler is empty, because programs that a job starts would inherit SIG_IGN, and the job
    # could not terminate them.
    for number in LEFT_TO_THE_WORKER:
        if signal.getsignal(number) is not signal.SIG_IGN:
            handle_signal(number, _leave_to_the_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_WORKER)
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
        outbox = _Outbox(wire, arrived[:NAME_BYTES])
        try:
            if framework is not None:
                framework.set_up()
            attempt: Attempt = pickle.loads(arrived[NAME_BYTES:])  # noqa: S301 - from our worker
        except Exception as error:  # noqa: BLE001 - for example, the handler cannot be imported here
            # Part of the app may have been imported, so the next attempt must not find it in this process.
            ended = Ended(Unstarted(describe(error, NOT_STARTED)), is_worn=True)
        else:
            ended = _serve(attempt, pipe, outbox, home, framework)
        served += 1
        outbox.end(replace(ended, is_worn=ended.is_worn or home.is_broken or _is_worn(limits, served)))


def _serve(attempt: Attempt, pipe: Connection, outbox: "_Outbox", home: Home, framework: Framework | None) -> Ended:
    process = this_process()
    try:
        try:
            home.enter(attempt.open_state, attempt.job.kind)
        finally:
            end_fork(process)
    except BaseException as error:  # noqa: BLE001 - in the worker's process, it would end the program
        return Ended(Unstarted(describe(error, NOT_STARTED)), is_worn=True)
    outbox.started()
    attempt.job.payload, attempt.job.headers = pickle.loads(pipe.recv_bytes()[NAME_BYTES:])  # noqa: S301 - our worker's
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
