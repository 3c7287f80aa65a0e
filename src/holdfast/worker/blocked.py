"""Reports a handler that blocks the event loop: which one, and where.

While the worker holds jobs, the loop records its turns. The lease keeper's thread checks them, and gives back jobs that
wait for a blocked loop.
"""

import asyncio
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from holdfast.domain.handlers import CURRENT_JOB
from holdfast.domain.tracebacks import stack_of
from holdfast.logs.records import get_logger
from holdfast.worker.held import HeldJob

log = get_logger("holdfast.worker")

_BLOCKED_SECONDS = 1.0
"""How long the loop may go without a turn before the jobs that wait for it are given back."""
_SILENCE_SECONDS = 60.0
"""The minimum time between two reports about the same kind."""
_PAUSE_SECONDS = 2.0
"""If a look is this late, no handler held it up: the machine or the process was paused."""


class BlockedLoop:
    """Call `turned` and `rests` on the loop, and the rest from another thread; `look` at least once a second."""

    def __init__(self, after: float, running: Callable[[], Iterable[HeldJob]]) -> None:
        self._after = after
        self._running = running
        self._turned: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._looked = self._since = 0.0
        self._reported: float | None = None
        """The last turn before a block that was reported; `_freed` is the first turn after it."""
        self._freed: float | None = None
        self._silent_until: dict[str | None, float] = {}

    def start(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def turned(self) -> None:
        self._turned = time.monotonic()
        if self._reported is not None and self._freed is None:
            self._freed = self._turned

    def rests(self) -> None:
        """Nothing that could block the loop is running."""
        self._turned = None

    def look(self) -> None:
        try:
            self._look()
        except Exception:
            # Not raised, because the caller has leases to keep.
            log.exception("looking at the event loop failed")
            self._after = math.inf

    def _look(self) -> None:
        now, turned = time.monotonic(), self._turned
        if now - self._looked > _PAUSE_SECONDS:
            self._since = now
        self._looked = now
        if self._reported is not None and self._freed is not None:
            log.warning("the event loop is no longer blocked", blocked_seconds=round(self._freed - self._reported, 1))
            self._reported = self._freed = None
        if turned is not None and self._reported is None and self._seconds(now, turned) > self._after:
            self._report(turned, now)

    @property
    def is_blocked(self) -> bool:
        turned = self._turned
        return turned is not None and self._seconds(time.monotonic(), turned) >= _BLOCKED_SECONDS

    def _seconds(self, now: float, turned: float) -> float:
        """Seconds since the last turn, or since the process was paused."""
        return now - max(turned, self._since)

    def _report(self, turned: float, now: float) -> None:
        held = self._blocking()
        kind = None if held is None else held.handler.kind
        if now < self._silent_until.get(kind, 0.0):
            return
        frame = sys._current_frames().get(self._thread)
        if frame is None or self._turned != turned:
            return
        stack = stack_of(frame)
        self._reported, self._silent_until[kind] = turned, now + _SILENCE_SECONDS
        log.warning(
            "something is blocking the event loop and with it all jobs"
            if held is None
            else "a handler is blocking the event loop and with it all other jobs; make it a `def` handler",
            **({} if held is None else held.named),
            blocked_seconds=round(now - turned, 1),
            at=stack.place,
            stack=stack.text,
        )

    def _blocking(self) -> HeldJob | None:
        assert self._loop is not None  # noqa: S101
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        # Compare jobs too: an eager task may not be recorded yet, and tasks that a handler makes copy its context.
        context: Mapping[ContextVar[Any], Any] = getattr(task, "get_context", dict)()
        job = context.get(CURRENT_JOB)
        return next(
            (
                each
                for each in self._running()
                if each.task is task or (job is not None and each.job.lease == job.lease)
            ),
            None,
        )
