"""SIGTERM and SIGINT of a process that runs jobs, from its first moment on."""

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

_NUMBERS = (signal.SIGTERM, signal.SIGINT)


def exit_when_told() -> None:
    """For a command, before it imports an app, which may take long: nothing is held yet that has to be given back.

    As the first process of a container it would otherwise not even hear of the signal.
    """

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        os._exit(0)

    for number in _NUMBERS:
        signal.signal(number, end)


class StopSignals:
    """`with StopSignals() as signals`: the first SIGTERM or SIGINT asks to stop, the second one exits at once.

    Python-level handlers and not the event loop's: they run even while a handler blocks the loop. At the end, whoever
    had the signals before has them again.
    """

    def __init__(self) -> None:
        self.received = False
        self._stop: Callable[[], None] = lambda: None
        self._before: list[tuple[signal.Signals, signal._HANDLER]] = []

    def __enter__(self) -> Self:
        for number in _NUMBERS:
            before = signal.signal(number, self._receive)
            # None: set by something that is not Python.
            self._before.append((number, signal.SIG_DFL if before is None else before))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before:
            signal.signal(number, before)

    def then(self, stop: Callable[[], None]) -> None:
        """From now on this is how to stop."""
        self._stop = stop
        if self.received:
            stop()

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received:
            os._exit(128 + number)
        self.received = True
        self._stop()
