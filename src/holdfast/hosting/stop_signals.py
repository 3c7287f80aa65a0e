"""The signals that stop a process that runs jobs, from startup on: SIGTERM, SIGHUP and SIGINT (Ctrl-C)."""

import math
import os
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from holdfast.hosting.early_stop import stop_signals
from holdfast.worker.forks import handle_signal

_SAME_SECONDS = 1.0
"""A terminal sends Ctrl-C to a process and to its wrapper, and the wrapper forwards it."""


class StopSignals:
    """`with StopSignals() as signals`: the first signal asks to stop, the second one to hurry, the third exits at once.

    Signals within a second of one that counted are the same request, sent twice.
    Uses Python's signal handlers, not the event loop's, because they run even while a job's handler blocks the loop. On
    exit, restores the previous handlers.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._stop: Callable[[], None] = lambda: None
        self._hurry: Callable[[], None] | None = None
        self._same_until = -math.inf
        self._before: list[tuple[signal.Signals, signal._HANDLER]] = []

    def __enter__(self) -> Self:
        for number in stop_signals():
            before = handle_signal(number, self._receive)
            # None: the previous handler was not set from Python.
            self._before.append((number, signal.SIG_DFL if before is None else before))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before:
            signal.signal(number, before)

    def then(self, stop: Callable[[], None], hurry: Callable[[], None] | None = None) -> None:
        """Call `stop` at the first signal, or now if it has already arrived, and `hurry` at the second.

        If `hurry` is None, there is nothing to save, so the second signal exits at once.
        """
        self._stop, self._hurry = stop, hurry
        if self.received:
            stop()

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        if now < self._same_until:
            return
        self._same_until = now + _SAME_SECONDS
        if not self.received:
            self.received = signal.Signals(number)
            self._stop()
        elif self._hurry is not None:
            hurry, self._hurry = self._hurry, None
            hurry()
        else:
            os._exit(128 + number)
