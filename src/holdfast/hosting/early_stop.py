"""Ends a command at a stop signal before its work begins. Imports nothing slow, so it can run before other imports."""

import os
import signal
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def stop_signals() -> list[signal.Signals]:
    """The signals to handle. SIGHUP is left alone if the program ignores it, as under `nohup`."""
    return [each for each in _NUMBERS if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


def exit_when_told() -> None:
    """Let a signal end a command at once while it imports its code and an app, which may take long. It holds nothing to
    release yet.

    Without a handler, the exit code would be that of a killed process, and the first process of a container would not
    receive the signal at all.
    """

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        os._exit(0)

    for number in stop_signals():
        signal.signal(number, end)
