"""Helpers for waiting in an event loop that is shared with application code."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from holdfast.domain.errors import InvalidInput

Value = TypeVar("Value")

_LATE_SECONDS = 0.05
_BLOCKED_WAITS = 10


async def any_done(tasks: Iterable[asyncio.Future[Any]], seconds: float) -> None:
    """Wait up to `seconds` for one of the tasks. Time during which a handler blocked the event loop does not count.

    After a block, the loop may see the timeout before an answer that arrived long ago, and the request may not even
    have been sent. An event loop that is always slightly late does not extend the wait by much.
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
    """Whether this task itself is being canceled. If not, a CancelledError comes from something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs on this thread, if there is one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def finished(coroutine: Coroutine[object, object, Value]) -> Value:
    """Return the result of a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Value = end.value
        return result
    coroutine.close()
    raise InvalidInput("this cannot be done without an event loop; use `async with in_memory(app)`")
