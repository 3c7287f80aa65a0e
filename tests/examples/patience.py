"""Waits for a condition."""

import threading
import time
from collections.abc import Callable

_SECONDS = 30.0
_PAUSE = threading.Event()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        _PAUSE.wait(0.02)
