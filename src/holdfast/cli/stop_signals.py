"""SIGTERM and SIGINT of a process that runs jobs, from its first moment on."""

import os
import signal
from collections.abc import Callable
from types import FrameType


class StopSignals:
    """The first SIGTERM or SIGINT asks to stop, the second one exits at once.

    Made before the app is imported, which may take long: until then nothing is held that has to be given back, and a
    signal ends the process. As the first process of a container it would otherwise not even hear it.

    Python-level handlers and not the event loop's: they run even while a handler blocks the loop.
    """

    def __init__(self) -> None:
        self.received = False
        self._stop: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def then(self, stop: Callable[[], None]) -> None:
        """From now on this is how to stop."""
        self._stop = stop
        if self.received:
            stop()

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received:
            os._exit(128 + number)
        if self._stop is None:
            os._exit(0)
        self.received = True
        self._stop()
