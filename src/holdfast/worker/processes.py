"""Handlers in child processes: they can be killed at the timeout, and their death fails only one attempt.

Each child serves one attempt at a time over its own pipe, so a killed child cannot leave a lock behind. It leads a
process group, so that ending the child also ends what its handlers started, unless that left the group.
"""

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import cast

from holdfast.domain.failures import describe
from holdfast.domain.framework import Framework
from holdfast.domain.job import JobError, Lease
from holdfast.domain.json_text import Json
from holdfast.domain.outcome import Retried, Unstarted
from holdfast.worker.child import (
    LEFT_TO_THE_WORKER,
    NAME_BYTES,
    NOT_STARTED,
    Attempt,
    Ended,
    Finishing,
    ProcessLimits,
    Started,
    run_child,
)
from holdfast.worker.guard import Guard
from holdfast.worker.process_logs import Logged, levels
from holdfast.worker.threads import HandlerThreads

_LOOK_SECONDS = 1.0
_LEAVE_SECONDS = 6.0
"""How long a child may take to leave the app's lifespan, which is canceled a little earlier."""


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
        self._threads = HandlerThreads("holdfast-process")

    async def run(
        self,
        attempt: Attempt,
        has_process: Callable[[], None],
        started: Callable[[], None],
        report: Callable[[Json], None],
        finishing: Callable[[], None],
        set_kill: Callable[[Callable[[], None]], None],
    ) -> Ended:
        """Wait until a process is free, then call `has_process`. `started` is called when the handler begins.

        The outcome is `Unstarted` if it could not begin, whatever the reason.
        """
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
        child = self._idle_child()
        try:
            if child is None:
                child = await self._start()
            set_kill(child.kill)
            serving = self._threads.submit(partial(child.serve, attempt, started, report, finishing))
        except Exception as error:  # noqa: BLE001 - such as a shortage of memory, threads or descriptors
            if child is not None and child.is_alive:
                self._idle.append(child)
            return Ended(Unstarted(describe(error, NOT_STARTED)))
        call = cast("asyncio.Future[Ended]", asyncio.wrap_future(serving))
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
        dead = list(self._idle)
        work = self._threads.submit(partial(self._new_child, dead))
        self._idle = []
        starting = cast("asyncio.Future[_Child]", asyncio.wrap_future(work))
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
        self._threads.close()


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
        self._process: BaseProcess = context.Process(target=run_child, args=arguments, daemon=True)
        self._guard = guard
        self._is_gone = self._has_lifespan = False
        self.is_alive = True
        try:
            with _signals_held():
                self._process.start()
        except BaseException:
            # Descriptors may be what is missing, and a garbage collection may be far off.
            self._pipe.close()
            raise
        finally:
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
        has_started = False

        def died(how: str) -> Ended:
            if has_started:
                return Ended(Retried(_died(how)))
            return Ended(Unstarted(replace(_died(f"{how} before the handler began"), code=NOT_STARTED)))

        try:
            self._has_lifespan |= attempt.open_state is not None
            name, job = _name_of(attempt.job.lease), attempt.job
            self._pipe.send_bytes(name + pickle.dumps(replace(attempt, job=replace(job, payload=Json(""), headers={}))))
            while True:
                message = self._next_message(name)
                match message:
                    case Ended():
                        return message
                    case Started():
                        has_started = True
                        started()
                        self._pipe.send_bytes(name + pickle.dumps((job.payload, job.headers)))
                    case Finishing():
                        finishing()
                    case Logged():
                        message.handle()
                    case _:
                        report(message)
        except (EOFError, OSError):
            return died(_death(self.end()))
        except _OtherAttemptError:
            # Later messages could not be trusted either.
            self.end()
            return died("answered for another attempt and was killed")
        except Exception as error:
            # For example, the handler cannot be pickled. Part of a message may have been sent: the child is unusable.
            self.end()
            if has_started:
                raise
            return Ended(Unstarted(describe(error, NOT_STARTED)))

    def _next_message(self, name: bytes) -> "Started | Finishing | Ended | Logged | Json":
        # Poll, because a process that the handler forked keeps the pipe open even after our child is dead.
        while not self._pipe.poll(_LOOK_SECONDS):
            if not self._process.is_alive() and not self._pipe.poll():
                raise EOFError
        arrived = self._pipe.recv_bytes()
        message: Started | Finishing | Ended | Logged | Json = pickle.loads(arrived[NAME_BYTES:])  # noqa: S301 - our child's
        if arrived[:NAME_BYTES] != name and not isinstance(message, Logged):
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
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_WORKER)
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
