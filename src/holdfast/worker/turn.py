"""The result of one turn of the claimer."""

import math
from typing import NamedTuple


class Turn(NamedTuple):
    """What one turn claimed, and when the next one makes sense.

    `again_in` is in seconds, or infinite if nothing is known to become due. `is_idle`: slots are free and nothing more
    is due, so the next claim is a poll; otherwise the next claim comes when a slot is freed. `is_short`: nothing was
    found, but some kind is at its limit, so something may be due.
    """

    claimed: int
    again_in: float
    is_idle: bool = False
    is_short: bool = False


FULL = Turn(0, math.inf)
