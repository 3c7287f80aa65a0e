"""Events that let the parts of a process signal its background loop without a reference to it."""

import asyncio


class Signals:
    """One instance per process, passed to all of its parts when they are created."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """A runner has something new to do or to report, which ends the background loop's pause."""
        self.stop = asyncio.Event()
        """The process should end."""
        self._woken: set[str] = set()

    def wake(self, runner: str) -> None:
        """Hint that there may be work for this runner."""
        self._woken.add(runner)
        self.changed.set()

    def take_woken(self) -> set[str]:
        """Return the runners that were woken since the last call."""
        woken, self._woken = self._woken, set()
        return woken
