"""How the parts of a process reach its background without knowing it: events that they set and it waits for."""

import asyncio


class Signals:
    """One for each process, given to all of its parts when they are made."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """A runner has something new to do or to report: the background's pause is over."""
        self.stop = asyncio.Event()
        """The process is to end."""
        self._woken: set[str] = set()

    def wake(self, runner: str) -> None:
        """A hint that there may be work for this runner."""
        self._woken.add(runner)
        self.changed.set()

    def take_woken(self) -> set[str]:
        """The runners that were woken since the last time."""
        woken, self._woken = self._woken, set()
        return woken
