"""Wake-ups: hints that there may be work. They are neither trusted nor required, because polling continues anyway.

A source calls `wake(queue)`, or `wake(None)` for every queue, on the event loop that runs it.
"""

from collections.abc import Callable
from typing import NamedTuple

from holdfast.domain.limits import RING_AHEAD

LONGEST_SLEEP = RING_AHEAD.total_seconds() - 10.0
"""Longest pause between two looks of a worker for which producers ring, regardless of its poll interval. Producers do
not ring for a job that is due later than they ring ahead, and such a job may be enqueued just after a look."""

Wake = Callable[[str | None], None]


class Told(NamedTuple):
    """What a sleeping process knows about being told of new work."""

    seconds: float
    """How long producers have been ringing for it without a break."""
    others: int = 0
    """How many other sleepers could take the same jobs."""
