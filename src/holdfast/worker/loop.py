"""One background activity: a step that returns how long to wait until the next one.

This is how all of the worker's activities start, wait, wake up, back off and stop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from holdfast.domain.errors import ConnectionLost, HoldfastError, StoreUnavailable, unforeseen
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.retry import exponential
from holdfast.logs.records import get_logger

log = get_logger("holdfast.worker")

_BACKOFF = exponential(base="100ms", max="5s", jitter="200ms")


async def cancel_within(seconds: float, *tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait up to `seconds` for them to end. Their results and errors are ignored."""
    for task in tasks:
        task.cancel()
        task.add_done_callback(_forget)
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def _forget(task: "asyncio.Task[Any]") -> None:
    # asyncio logs an error that was never retrieved when the task is garbage-collected.
    if not task.cancelled():
        task.exception()


async def in_thread_or_here(step: Callable[[], None]) -> None:
    """Run a blocking step of a shutdown. If no thread can be started, blocking the event loop is better than failing.

    The step may then run a second time: the standard pool keeps work for which it found no thread.
    """
    try:
        running = asyncio.get_running_loop().run_in_executor(None, step)
    except RuntimeError:
        step()
    else:
        await running


class Loop:
    """`step` returns the seconds until the next step, or None to wait for a wake-up only.

    After errors, the wait before the next step grows. Only after a first lost connection is the next step immediate.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[float | None]]) -> None:
        self._name = name
        self._step = step
        self._awake = asyncio.Event()
        self._stopping = False
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing

    def wake(self) -> None:
        self._awake.set()

    def stop(self) -> None:
        self._stopping = True
        self._awake.set()

    async def run(self) -> None:
        failures = 0
        while not self._stopping:
            self._awake.clear()
            try:
                delay = await self._step()
            except HoldfastError as error:
                failures += 1
                if failures == 1:
                    unavailable = isinstance(error, StoreUnavailable)
                    said = "store unavailable, trying again" if unavailable else "step failed, trying again"
                    log.warning(said, activity=self._name, error=str(error), exc_info=unforeseen(error))
                delay = self._pause_after(failures, is_cut=isinstance(error, ConnectionLost))
            except (Exception, asyncio.CancelledError):
                if is_being_canceled():
                    raise
                failures += 1
                log.exception("step failed, trying again", activity=self._name)
                delay = self._pause_after(failures, is_cut=False)
            else:
                if failures:
                    log.warning("working again", activity=self._name, after_failures=failures)
                failures = 0
            if delay != 0:
                await self._wait(delay)

    def _pause_after(self, failures: int, *, is_cut: bool) -> float:
        self._awake.clear()
        return 0.0 if is_cut and failures == 1 else _BACKOFF.delay(failures, self._random).total_seconds()

    async def _wait(self, seconds: float | None) -> None:
        if self._stopping:
            return
        # Not asyncio.timeout, which ends the wait with an exception: too slow for the finisher, which waits per batch.
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._awake.set)
        try:
            await self._awake.wait()
        finally:
            if timer is not None:
                timer.cancel()
