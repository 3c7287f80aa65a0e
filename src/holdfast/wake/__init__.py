"""Wake-ups: hints that there may be work. Never trusted and never required, because polling goes on beside them.

A source calls `wake(queue)`, or `wake(None)` for every queue, on the event loop that runs it.
"""

from collections.abc import Callable
from typing import NamedTuple

Wake = Callable[[str | None], None]


class Told(NamedTuple):
    """What a process knows that sleeps and is told of new work."""

    seconds: float
    """For how long it has been told, without a break."""
    others: int = 0
    """How many sleep besides and could take the same jobs."""
