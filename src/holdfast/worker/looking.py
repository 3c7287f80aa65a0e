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
_AGAIN_SECONDS = 0.04
_REST = 4
"""After a look that took longer than the patience, none for so many times as long as it took."""
_CLOSE_SECONDS = 1.0


class Looking:
    """One look at a time. Times are monotonic seconds."""

    def __init__(self, look: Callable[[], Awaitable[Looked]], on_suspect: Callable[[], None]) -> None:
        """`on_suspect` hears of each look that found a suspect due."""
        self._look = look
        self._on_suspect = on_suspect
        self._task: asyncio.Task[Looked] | None = None
        self._began = self._not_before = 0.0
        self._has_failed = False

    def keep_up(self) -> None:
        """Without waiting: a look once a second, and what the last one found."""
        self._settle()
        if self._task is None and time.monotonic() >= max(self._began + _BUSY_SECONDS, self._not_before):
            self._begin()

    async def answer(self, *, is_patient: bool) -> Looked | None:
        """What is due now; None if a look takes longer than our patience, or if it is too early for the next one.

        `is_patient`: wait for a look that begins now, however long it takes.
        """
        if is_patient and self._task is not None:
            await asyncio.wait([self._task])
        # Its answer is from before the question.
        self._settle()
        if self._task is None and time.monotonic() < self._not_before and not is_patient:
            return None
        task = self._task or self._begin()
        await asyncio.wait([task], timeout=None if is_patient else _PATIENCE_SECONDS)
        return self._answer(task) if task.done() else None

    @property
    def again_in(self) -> float:
        """Seconds after which `answer` may know more."""
        return _AGAIN_SECONDS if self._task is not None else max(0.0, self._not_before - time.monotonic())

    async def close(self) -> None:
        if self._task is not None:
            await cancel_within(_CLOSE_SECONDS, self._task)

    def _begin(self) -> "asyncio.Task[Looked]":
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._timed())
        return self._task

    async def _timed(self) -> Looked:
        try:
            return await self._look()
        finally:
            now = time.monotonic()
            took = now - self._began
            self._not_before = now + _REST * took if took > _PATIENCE_SECONDS else now

    def _settle(self) -> None:
        """Take in a look that ended while the worker did something else."""
        if self._task is not None and self._task.done():
            try:
                self._answer(self._task)
            except HoldfastError as error:
                if not self._has_failed:
                    log.warning("cannot look at the queue: jobs that were committed late may wait", error=str(error))
                self._has_failed = True

    def _answer(self, task: "asyncio.Task[Looked]") -> Looked:
        self._task = None
        looked = task.result()
        self._has_failed = False
        if looked.suspect_due_in is not None and not looked.suspect_due_in:
            self._on_suspect()
        return looked
