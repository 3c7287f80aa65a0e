"""Looks at the queue next to the claims: past many deleted rows a look takes long, and claims must not wait for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast.domain.errors import HoldfastError
from holdfast.log import get_logger
from holdfast.store.contract import Looked
from holdfast.worker.loop import cancel_within

log = get_logger("holdfast.worker")

_BUSY_SECONDS = 1.0
"""How often a busy worker looks, and so how long a claim's floors may hide a job."""
_PATIENCE_SECONDS = 0.01
_REST = 4
"""After a look that took longer than the patience, none for so many times as long as it took."""
_CLOSE_SECONDS = 1.0


class Looking:
    """One look at a time. Times are monotonic seconds."""

    def __init__(
        self, look: Callable[[], Awaitable[Looked]], on_due: Callable[[], None], on_suspect: Callable[[], None]
    ) -> None:
        """`on_due` hears of jobs that a look found while no one waited, when they are due; `on_suspect` of each due
        suspect."""
        self._look = look
        self._on_due = on_due
        self._on_suspect = on_suspect
        self._task: asyncio.Task[Looked] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._due: asyncio.TimerHandle | None = None
        self._is_awaited = self._has_failed = False
        self._began = self._not_before = 0.0

    def keep_up(self) -> None:
        """A busy worker looks once a second."""
        if time.monotonic() >= max(self._began + _BUSY_SECONDS, self._not_before):
            self._begin()

    async def answer(self, *, is_patient: bool) -> Looked | None:
        """What is due; None if that takes too long to find out. Then `on_due` hears of it.

        `is_patient`: wait for a look that begins now, however long it takes.
        """
        if is_patient and self._task is not None:
            await asyncio.wait([self._task])
        rest = self._not_before - time.monotonic()
        if self._task is None and rest > 0 and not is_patient:
            self._begin_in(rest)
            return None
        task = self._begin()
        self._is_awaited = True
        try:
            await asyncio.wait([task], timeout=None if is_patient else _PATIENCE_SECONDS)
        finally:
            self._is_awaited = False
        return task.result() if task.done() else None

    async def close(self) -> None:
        for timer in (self._later, self._due):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            await cancel_within(_CLOSE_SECONDS, self._task)

    def _begin(self) -> "asyncio.Task[Looked]":
        """The look under way, or a new one."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._task is None:
            self._began = time.monotonic()
            self._task = asyncio.create_task(self._timed())
            self._task.add_done_callback(self._ended)
        return self._task

    def _begin_in(self, seconds: float) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(seconds, self._begin)

    async def _timed(self) -> Looked:
        try:
            return await self._look()
        finally:
            now = time.monotonic()
            took = now - self._began
            self._not_before = now + _REST * took if took > _PATIENCE_SECONDS else now

    def _ended(self, task: "asyncio.Task[Looked]") -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_awaited and not self._has_failed:
            unforeseen = None if isinstance(error, HoldfastError) else error
            log.warning("cannot look at the queue, late jobs may wait", error=str(error), exc_info=unforeseen)
        self._has_failed = error is not None
        if error is not None or task.cancelled():
            return
        looked = task.result()
        if looked.suspect_due_in is not None and not looked.suspect_due_in:
            self._on_suspect()
        if looked.due_in is not None and not self._is_awaited:
            if self._due is not None:
                self._due.cancel()
            self._due = asyncio.get_running_loop().call_later(looked.due_in.total_seconds(), self._on_due)
