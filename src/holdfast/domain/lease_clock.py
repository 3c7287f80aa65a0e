"""The clock by which a worker counts its leases and the time of its handlers: seconds that never go back.

They go on while the machine is suspended, where the system can tell; those of time.monotonic do not on Linux, and a
worker would wake up and trust leases that ran out hours ago.
"""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def lease_now() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    lease_now = time.monotonic
