"""Handlers in processes of their own: they can be killed at the timeout, and their death fails one attempt only.

Each child serves one attempt at a time over its own pipe, so a killed child can leave no lock behind.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import inspect
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from pydantic import TypeAdapter

from holdfast.domain.failures import Failures, describe, outcome_of_value
from holdfast.domain.handlers import CURRENT_JOB, HandlerFunction, RunningJob
from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json, decode
from holdfast.domain.outcome import Outcome, Retried

_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


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
class Ended:
    outcome: Outcome
    finish_requested: bool


class Processes:
    """A pool of children, started when first needed and kept for the next attempt."""

    def __init__(self, most: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Child] = []
        self._closed = False
        self._threads = ThreadPoolExecutor(max_workers=most, thread_name_prefix="holdfast-process")

    async def run(
        self,
        attempt: Attempt,
        started: Callable[[], None],
        report: Callable[[Json], None],
        set_kill: Callable[[Callable[[], None]], None],
    ) -> Ended:
        loop = asyncio.get_running_loop()
        child = self._idle_child() or await self._start()
        set_kill(child.kill)
        call = loop.run_in_executor(self._threads, child.serve, attempt, started, report)
        try:
            ended = await asyncio.shield(call)
        except asyncio.CancelledError:
            child.kill()
            # The thread is over as soon as the pipe breaks, so that no thread outlives its attempt.
            with contextlib.suppress(asyncio.CancelledError):
                await call
            raise
        if child.is_alive:
            self._idle.append(child)
        return ended

    async def _start(self) -> "_Child":
        starting = asyncio.get_running_loop().run_in_executor(self._threads, _Child, self._context)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._keep)
            raise

    def _idle_child(self) -> "_Child | None":
        while self._idle:
            child = self._idle.pop()
            if child.is_usable:
                return child
            child.end()
        return None

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
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Child:
    def __init__(self, context: multiprocessing.context.SpawnContext) -> None:
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_main, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.is_alive = True

    def serve(self, attempt: Attempt, started: Callable[[], None], report: Callable[[Json], None]) -> Ended:
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
                    case _:
                        report(message)
        except (EOFError, OSError):
            return Ended(Retried(_death(self.end())), finish_requested=False)
        except BaseException:
            # The attempt cannot be pickled; whatever part of it went out, the child is of no more use.
            self.end()
            raise

    def _next_message(self) -> "Started | Ended | Json":
        # A process that the handler forked holds the pipe open too, so its end alone does not tell that ours is dead.
        while not self._pipe.poll(_LOOK_SECONDS):
            if not self._process.is_alive() and not self._pipe.poll():
                raise EOFError
        message: Started | Ended | Json = self._pipe.recv()
        return message

    @property
    def is_usable(self) -> bool:
        return self.is_alive and self._process.is_alive()

    def kill(self) -> None:
        self.is_alive = False
        self._process.kill()

    def end(self) -> int | None:
        """Kill it and wait until it is gone, so that neither a zombie nor a descriptor stays."""
        self.kill()
        self._process.join()
        self._pipe.close()
        return self._process.exitcode


def _death(exit_code: int | None) -> JobError:
    if exit_code is not None and exit_code < 0:
        try:
            how = f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            how = f"was killed by signal {-exit_code}"
    else:
        how = f"exited with code {exit_code}"
    return JobError(code="PROCESS_DIED", type="ProcessDied", message=f"the handler's process {how}")


def _main(pipe: Connection) -> None:
    # A terminal's Ctrl-C and a supervisor's SIGTERM to the group are the worker's to decide about. A handler that does
    # nothing, because SIG_IGN would be inherited by the programs that a job starts: it could not terminate them.
    signal.signal(signal.SIGINT, _leave_to_the_worker)
    signal.signal(signal.SIGTERM, _leave_to_the_worker)
    _die_with_parent()
    while True:
        outbox = _Outbox(pipe)
        try:
            attempt: Attempt = pipe.recv()
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001 - what was sent cannot be imported here
            outbox.end(Ended(Retried(describe(error, "ERROR")), finish_requested=False))
        else:
            pipe.send(Started())
            # A context of its own, so that nothing that a handler sets there meets the next one.
            outbox.end(contextvars.copy_context().run(_run, attempt, outbox))


def _leave_to_the_worker(number: int, frame: object) -> None:
    pass


class _Outbox:
    """What one attempt sends to the worker: progress from any of its threads, and nothing after its end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._ended = False

    def report(self, progress: Json) -> None:
        with self._lock:
            if not self._ended:
                self._pipe.send(progress)

    def end(self, ended: Ended) -> None:
        with self._lock:
            self._ended = True
            self._pipe.send(ended)


def _die_with_parent() -> None:
    # A worker killed with SIGKILL cannot stop its children, and nobody renews their leases. On Linux the kernel
    # does it, even while something in here holds the interpreter and no thread gets a turn.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(attempt: Attempt, outbox: _Outbox) -> Ended:
    job: RunningJob[Any] = attempt.job
    job._report = outbox.report
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
