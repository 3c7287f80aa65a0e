"""What a turn of the claimer has brought."""

import math
from typing import NamedTuple


class Turn(NamedTuple):
    """What one turn claimed, and when the next one makes sense.

    `again_in` is in seconds; infinite: nothing is known to become due. `is_idle`: slots are free and nothing more is
    due, so that claiming again is a matter of polling; otherwise a freed slot says when. `is_short`: it found
    nothing, but of some kind it may take no more, so something may be due.
    """

    claimed: int
    again_in: float
    is_idle: bool = False
    is_short: bool = False


FULL = Turn(0, math.inf)
