"""Named places in the engine at which a fault test lets its process die, where state is in between.

With `HOLDFAST_CRASH_AT=claim.answered` in its environment a process kills itself (SIGKILL) when it reaches that point;
`finish.after:3` is the third time, and commas separate several points. Without the variable `reach` is an empty
function and `around` changes nothing. For tests only: it is read once, when this module is imported.
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
    # A producer, in a statement or a COPY of its own. After: it is committed, and nobody was told.
    "enqueue.before",
    "enqueue.after",
    "copy.before_commit",
    "publish.before",
    "publish.after",
    # The start of a worker: subscriptions go into the store before its first claim.
    "declare.before",
    "declare.after",
    # The leases are committed: nobody here knows of them yet, or nothing has started.
    "claim.answered",
    "claim.held",
    "handler.before",
    "handler.after",
    # Inside the transaction of a handler, or of whoever it calls.
    "finish_in.before",
    "finish_in.after",
    # A batch of outcomes. Between: those without a result are written, the others are not.
    "finish.before",
    "finish.between",
    "finish.after",
    "finish.reported",
    "renew.before",
    "renew.after",
    "rescue.before",
    "rescue.after",
    # An occurrence of a job schedule: its job and the mark are one transaction.
    "occurrence.before",
    "occurrence.after",
    # An inline runner: its function, and then the mark in the transaction that holds the lock.
    "inline.before",
    "inline.after",
    "inline.before_commit",
    "inline.marked",
    # A relay's message to the broker. After: it is confirmed, and the job is not finished.
    "relay.before",
    "relay.after",
    # A day's partitions.
    "drop.before",
    "drop.before_commit",
    "drop.after",
    # A worker that stops: jobs that have not started are still held, then outcomes that are not written.
    "shutdown.release",
    "shutdown.outcomes",
)

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Asked = Callable[Parameters, Coroutine[Any, Any, Answer]]


def _pass_by(point: str, /) -> None:
    """What `reach` is while nobody wants a crash."""


def crashes_of(text: str) -> dict[str, int]:
    """At which points, and at the how manieth time; InvalidInput if there is no such point."""
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
    """What `reach` is in a process that is to die."""
    if not crashes:
        return _pass_by
    # Points are reached in several threads, and taking the next number of a count is one step for all of them.
    times = {point: count(1) for point in crashes}

    def reach(point: str, /) -> None:
        if point in times and next(times[point]) == crashes[point]:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


def around(name: str) -> Callable[[Asked[Parameters, Answer]], Asked[Parameters, Answer]]:
    """For an async function on the way of every job: `name`.before and `name`.after, or the bare function."""

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
"""Call it with the name of the point that the process has come to."""
