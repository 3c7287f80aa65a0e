"""Looks at the queue alongside the claims: past many deleted rows, a look is slow, and claims must not wait for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast.domain.errors import HoldfastError
from holdfast.logs.records import get_logger
from holdfast.store.contract import Looked
from holdfast.worker.loop import cancel_within

log = get_logger("holdfast.worker")

_BUSY_SECONDS = 1.0
"""How often a busy worker looks, which limits how long a claim's floors can hide a job."""
_PATIENCE_SECONDS = 0.01
_REST = 4
"""After a look that exceeded the patience, pause for this multiple of its duration."""
_CLOSE_SECONDS = 1.0


class Looking:
    """One look at a time. Times are monotonic seconds."""

    def __init__(
        self, look: Callable[[], Awaitable[Looked]], on_due: Callable[[], None], on_suspect: Callable[[], None]
    ) -> None:
        """`on_due` is called when jobs become due that a look found while no caller was waiting; `on_suspect` is called
        whenever a look finds a due suspect."""
        self._look = look
        self._on_due = on_due
        self._on_suspect = on_suspect
        self._task: asyncio.Task[Looked] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._due: asyncio.TimerHandle | None = None
        self._is_awaited = self._is_outdated = self._has_failed = self._has_warned = False
        self._began = self._not_before = 0.0
        self.begun = 0
        """How many looks have begun."""

    def keep_up(self) -> None:
        """Look once a second while the worker is busy."""
        if time.monotonic() >= max(self._began + _BUSY_SECONDS, self._not_before):
            self._begin()

    async def answer(self, *, is_patient: bool, after: int | None = None) -> Looked | None:
        """What is due, or None if the look takes too long. In that case `on_due` is called later.

        `is_patient`: wait for a look that begins now, no matter how long it takes. `after`: how many looks had begun
        when the caller was told that something may be due; now if None. An earlier look may have missed that job, so
        unless it finds another one, it is followed by one more.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        if self._task is not None and is_patient:
            await asyncio.wait([self._task])
        elif self._task is not None and (after is None or self.begun <= after):
            earlier = await self._waited_for(self._task, _PATIENCE_SECONDS)
            if earlier is None or is_due(earlier):
                self._is_outdated = earlier is None
                return earlier
        rest = self._not_before - time.monotonic()
        if self._task is None and rest > 0 and not is_patient:
            self._begin_in(rest)
            return None
        return await self._waited_for(self._begin(), None if is_patient else max(0.0, until - time.monotonic()))

    async def _waited_for(self, task: "asyncio.Task[Looked]", seconds: float | None) -> Looked | None:
        self._is_awaited = True
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            self._is_awaited = False
        return task.result() if task.done() else None

    async def close(self) -> None:
        self._is_outdated = False
        for timer in (self._later, self._due):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            await cancel_within(_CLOSE_SECONDS, self._task)

    def _begin(self) -> "asyncio.Task[Looked]":
        """The current look, or a new one."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._task is None:
            self._began = time.monotonic()
            self.begun += 1
            self._is_outdated = False
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
            self._has_warned = True
        self._has_failed = error is not None
        if error is not None or task.cancelled():
            return
        if self._has_warned:
            self._has_warned = False
            log.warning("looks at the queue again")
        looked = task.result()
        if looked.suspect_due_in is not None and not looked.suspect_due_in:
            self._on_suspect()
        if looked.due_in is not None and not self._is_awaited:
            if self._due is not None:
                self._due.cancel()
            self._due = asyncio.get_running_loop().call_later(looked.due_in.total_seconds(), self._on_due)
        if self._is_outdated and not is_due(looked):
            self._begin_in(max(0.0, self._not_before - time.monotonic()))


def is_due(looked: Looked) -> bool:
    return looked.due_in is not None and not looked.due_in
