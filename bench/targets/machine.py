"""Whether the machine is at rest, because its other load affects every figure."""

import asyncio
import sys
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_HAS_STAT = _STAT.exists()
_LOOK_SECONDS = 0.25
_PATIENCE_SECONDS = 5.0
_AT_REST = 0.25
_IDLE = 3


async def rest() -> float:
    """Wait briefly for the server's own writes and other processes. Returns how busy the machine still is, 0 to 1.

    A run right after another one was up to a fifth slower than one after four seconds, on either side.
    """
    if not _HAS_STAT:
        await asyncio.sleep(1)
        return 0.0
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        before = _ticks()
        await asyncio.sleep(_LOOK_SECONDS)
        passed = [after - earlier for after, earlier in zip(_ticks(), before, strict=True)]
        busy = 1 - passed[_IDLE] / max(1, sum(passed))
        if busy <= _AT_REST or time.monotonic() >= end:
            break
    if busy > _AT_REST:
        print(f"         the machine is busy with other work ({busy:.0%})", file=sys.stderr, flush=True)
    return busy


def _ticks() -> list[int]:
    """Ticks of user, nice, system, idle, disk wait, interrupts (two), and those stolen by other machines."""
    return [int(number) for number in _STAT.read_text().splitlines()[0].split()[1:9]]
