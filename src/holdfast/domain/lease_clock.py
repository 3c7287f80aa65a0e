"""The clock that a worker uses for leases and handler timeouts: seconds that never go backward.

Where the system supports it, the clock keeps running while the machine is suspended. time.monotonic does not on Linux,
so a worker would wake up and trust leases that expired hours ago.
"""

import time
from collections.abc import Callable
from functools import partial

lease_now: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    # A partial is faster than a Python function, and every attempt calls it twice.
    lease_now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
