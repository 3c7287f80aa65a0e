"""Gives waiting jobs their slots and runs their attempts, so that a handler that never waits costs no switch of tasks.

A task starts one job after another. The first handler that has to wait keeps that task for itself, and others go on
with the rest. So jobs that wait have a task each, and no job meets a task that somebody has kept from an earlier one:
what such a handler left behind in it, a cancellation or a session, is not for others.
"""

import asyncio
import contextvars
import sys
import time
import types
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from holdfast.domain.failures import describe
from holdfast.domain.job import JobError
from holdfast.domain.outcome import Outcome, Retried
from holdfast.worker.executor import outcome_of_interruption
from holdfast.worker.held import HeldJob, Slots

Attempt = Coroutine[Any, Any, Outcome | None]
_Waiting = tuple[HeldJob, contextvars.Context, Awaitable[Outcome | None]]

_TURN_SECONDS = 0.0005
"""After so much work without a pause the loop has its turn: claims and outcomes are to be on their way meanwhile. Turns
of 2 ms make a drain a fifth slower."""


class Starter:
    def __init__(
        self,
        slots: Slots,
        run: Callable[[HeldJob], Attempt],
        over: Callable[[HeldJob, Outcome | None], None],
        drop: Callable[[HeldJob], None],
    ) -> None:
        """`over` takes the outcome of an attempt.

        `drop` takes a job that was interrupted before it began, or whose lease was over by then: the claim was answered
        late, or everything stood still since. Somebody else may be at it.
        """
        self._slots = slots
        self._run = run
        self._over = over
        self._drop = drop
        self._stopping = False
        self._starting: set[asyncio.Task[None]] = set()
        self._last_one_waited = False
        self._context = contextvars.Context()

    def open(self) -> None:
        """From now on every attempt has a copy of the current context: none inherits anything from another."""
        self._context = contextvars.copy_context()

    def stop(self) -> None:
        """Start nothing any more."""
        self._stopping = True

    def start(self) -> None:
        """Start what waits for a slot, as far as there are any."""
        if self._stopping:
            return
        # One task does for handlers that never wait. For others that would be one start in each turn of the loop.
        wanted = self._slots.startable if self._last_one_waited else min(1, self._slots.startable)
        while len(self._starting) < wanted:
            # Not loop.create_task: an application's task factory may run it at once, or know nothing of contexts.
            task = asyncio.Task(self._start_each(), loop=asyncio.get_running_loop(), context=self._context)
            self._starting.add(task)
            task.add_done_callback(self._ended)

    async def _start_each(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a starter runs in a task of its own")
        waits = await self._until_one_waits(task)
        self._starting.discard(task)
        task.remove_done_callback(self._ended)
        self.start()
        if waits is not None:
            held, context, rest = waits
            try:
                outcome = await rest
            except BaseException as error:  # noqa: BLE001 - whatever it was, the attempt is over
                outcome = self._outcome_of(held, error)
            context.run(self._over, held, outcome)
            self.start()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that was canceled before its first step runs nothing of its own, and nobody else starts the others."""
        if task in self._starting:
            self._starting.discard(task)
            self.start()

    async def _until_one_waits(self, task: asyncio.Task[None]) -> _Waiting | None:
        turn_ends = time.monotonic() + _TURN_SECONDS
        unkept = _references(task)
        while not self._stopping and (held := self._slots.next_to_start()) is not None:
            now = time.monotonic()
            if held.interruption is not None or held.nears_end(now):
                self._slots.stopped_running(held)
                self._drop(held)
                continue
            held.started = now
            attempt, context = self._run(held), self._context.copy()
            try:
                waits_for = context.run(attempt.send, None)
            except StopIteration as end:
                self._last_one_waited = False
                context.run(self._over, held, end.value)
            except BaseException as error:  # noqa: BLE001 - whatever it was, the attempt is over
                context.run(self._over, held, self._outcome_of(held, error))
            else:
                held.task, self._last_one_waited = task, True
                return held, context, _rest_of(attempt, context, waits_for)
            if task.cancelling() or _references(task) != unkept:
                # The handler has kept the task in which it ran, or canceled it and was done before it took effect.
                return None
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN_SECONDS
        return None

    def _outcome_of(self, held: HeldJob, error: BaseException) -> Outcome | None:
        if not isinstance(error, asyncio.CancelledError):
            return Retried(describe(error, "ERROR"))
        if held.interruption is None and not self._stopping:
            return Retried(JobError(code="ERROR", type="CancelledError", message="the handler canceled its own task"))
        return outcome_of_interruption(held)


def _references(task: asyncio.Task[None]) -> tuple[int, int]:
    return sys.getrefcount(task), weakref.getweakrefcount(task)


@types.coroutine
def _rest_of(attempt: Attempt, context: contextvars.Context, waits_for: object) -> Generator[Any, Any, Outcome | None]:
    """Go on, in the task that awaits this, with an attempt whose first step in its context gave `waits_for`."""
    try:
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:  # noqa: BLE001 - the handler's to deal with
                # Without this frame, or it would be the innermost one of what the handler raises.
                trace = error.__traceback__
                waits_for = context.run(attempt.throw, error.with_traceback(trace and trace.tb_next))
            else:
                waits_for = context.run(attempt.send, answer)
    except StopIteration as end:
        outcome: Outcome | None = end.value
        return outcome
