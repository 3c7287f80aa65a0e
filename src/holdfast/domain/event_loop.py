"""Two questions about waiting in an event loop that other people's code shares."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

_LATE_SECONDS = 0.05
_BLOCKED_WAITS = 10


async def any_done(tasks: Iterable[asyncio.Future[Any]], seconds: float) -> None:
    """Wait that long for one of them, where time in which a handler blocked the event loop does not count.

    The loop may see that the time is up before it sees the answer that has been there for long, and the question may
    not even have been sent. An event loop that is always a little late does not make it wait for much longer.
    """
    tasks, left = list(tasks), seconds
    for _ in range(_BLOCKED_WAITS):
        started = time.monotonic()
        done, _pending = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        late = time.monotonic() - started - left
        if done or late < _LATE_SECONDS:
            return
        left = min(seconds, max(late, seconds / 4))


def is_being_canceled() -> bool:
    """Whether somebody cancels this very task. Otherwise a CancelledError is that of something it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
