"""Events that let the parts of a process signal its background loop without a reference to it."""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")

_CANCELED_SECONDS = 1.0


class Signals:
    """One instance per process, passed to all of its parts when they are created."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """A runner has something new to do or to report, which ends the background loop's pause."""
        self.stop = asyncio.Event()
        """The process should end."""
        self.hurry = asyncio.Event()
        """It should not wait for running work to finish."""
        self._woken: set[str] = set()

    def wake(self, runner: str) -> None:
        """Hint that there may be work for this runner."""
        self._woken.add(runner)
        self.changed.set()

    async def unless_hurried(self, work: Coroutine[Any, Any, Value], seconds: float = math.inf) -> Value | None:
        """Wait for `work` this long, but not while the process is in a hurry. None means that the work was canceled."""
        working, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self.hurry.wait())
        both = {working, hurry}
        try:
            timeout = None if seconds == math.inf else seconds
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            working.cancel()
            hurry.cancel()
        await asyncio.wait(both, timeout=_CANCELED_SECONDS)
        return None

    def take_woken(self) -> set[str]:
        """Return the runners that were woken since the last call."""
        woken, self._woken = self._woken, set()
        return woken
