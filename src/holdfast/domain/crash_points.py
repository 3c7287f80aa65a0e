"""Named places in the engine where a fault test can kill the process, with its work half done.

With `HOLDFAST_CRASH_AT=claim.answered` in its environment, a process kills itself (SIGKILL) when it reaches that point.
`finish.after:3` means the third time; commas separate several points. Without the variable, `reach` is an empty
function and `around` changes nothing. For tests only: the variable is read once, when this module is imported.
"""

import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeVar

from holdfast.domain.errors import InvalidInput

VARIABLE = "HOLDFAST_CRASH_AT"

POINTS = (
    # A producer, in its own statement or COPY. After: it is committed, but its caller does not know yet.
    "enqueue.before",
    "enqueue.after",
    "copy.before_commit",
    "publish.before",
    "publish.after",
    # The start of a worker: it stores subscriptions before its first claim.
    "declare.before",
    "declare.after",
    # The leases are committed, but the worker does not hold them yet, or has started none of their handlers.
    "claim.answered",
    "claim.held",
    "handler.before",
    "handler.after",
    # Inside the transaction of a handler or of code that it calls.
    "finish_in.before",
    "finish_in.after",
    # A batch of outcomes. Between: outcomes without a result are written, the others are not.
    "finish.before",
    "finish.between",
    "finish.after",
    "finish.reported",
    "renew.before",
    "renew.after",
    "rescue.before",
    "rescue.after",
    # An occurrence of a job schedule: the job and the mark are written in one transaction.
    "occurrence.before",
    "occurrence.after",
    # An inline runner: its function, then the mark in the transaction that holds the lock.
    "inline.before",
    "inline.after",
    "inline.before_commit",
    "inline.marked",
    # A relay's message to the broker. After: it is confirmed, but the job is not finished.
    "relay.before",
    "relay.after",
    # A day's partitions.
    "drop.before",
    "drop.before_commit",
    "drop.after",
    # A worker that is stopping: it still holds jobs that have not started, then outcomes that are not written.
    "shutdown.release",
    "shutdown.outcomes",
)

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Asked = Callable[Parameters, Coroutine[Any, Any, Answer]]


def _pass_by(point: str, /) -> None:
    """Used as `reach` when no crash is requested."""


def crashes_of(text: str) -> dict[str, int]:
    """Maps each crash point to the visit at which to crash. Raises InvalidInput for an unknown point."""
    crashes = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        point, colon, number = item.partition(":")
        if point not in POINTS:
            raise InvalidInput(f"{VARIABLE}: {point!r} is not a crash point; there are {', '.join(POINTS)}")
        if colon and (not number.isdecimal() or int(number) < 1):
            raise InvalidInput(f"{VARIABLE}: {number!r} is not a number of times; write {point}:2 for the second time")
        crashes[point] = int(number or 1)
    return crashes


def crasher(crashes: Mapping[str, int]) -> Callable[[str], None]:
    """Returns the `reach` of a process that should crash."""
    if not crashes:
        return _pass_by
    # Several threads may reach a point, and next() on a count is atomic.
    times = {point: count(1) for point in crashes}

    def reach(point: str, /) -> None:
        if point in times and next(times[point]) == crashes[point]:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


def around(name: str) -> Callable[[Asked[Parameters, Answer]], Asked[Parameters, Answer]]:
    """Add `name`.before and `name`.after to an async function that every job passes; without crashes, do nothing."""

    def with_points(function: Asked[Parameters, Answer]) -> Asked[Parameters, Answer]:
        if reach is _pass_by:
            return function

        @wraps(function)
        async def reaching(*arguments: Parameters.args, **named: Parameters.kwargs) -> Answer:
            reach(f"{name}.before")
            answer = await function(*arguments, **named)
            reach(f"{name}.after")
            return answer

        return reaching

    return with_points


reach: Callable[[str], None] = crasher(crashes_of(os.environ.get(VARIABLE, "")))
"""Call this with the name of the crash point that the process has reached."""
