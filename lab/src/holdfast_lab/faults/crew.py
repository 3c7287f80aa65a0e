"""The workers of a case, and how the case waits for them."""

import asyncio
import time
from collections.abc import Callable, Sequence

from holdfast.domain.errors import HoldfastError
from holdfast_lab.faults.processes import FaultyProcess

_TURN_SECONDS = 0.05
_STARTED_SECONDS = 20.0


class Broken(HoldfastError):
    """The laboratory itself failed. This says nothing about Holdfast."""


class Crew:
    """The workers of a case."""

    def __init__(self, start: Callable[[], FaultyProcess]) -> None:
        self._start = start
        self.processes: list[FaultyProcess] = []

    @property
    def alive(self) -> list[FaultyProcess]:
        return [each for each in self.processes if each.is_alive]

    def add(self, number: int = 1) -> Sequence[FaultyProcess]:
        """Start workers without waiting for them."""
        new = [self._start() for _ in range(number)]
        self.processes += new
        return new

    async def start(self, number: int = 1) -> Sequence[FaultyProcess]:
        """Start workers and wait until each one is working."""
        new = self.add(number)
        patience = time.monotonic() + _STARTED_SECONDS
        while any("worker started" not in each.output() for each in new):
            if any(not each.is_alive for each in new) or time.monotonic() > patience:
                said = "\n".join(each.output()[-500:] for each in new)
                raise Broken(f"a worker did not start: {said}")
            await asyncio.sleep(_TURN_SECONDS)
        return new

    async def close(self) -> None:
        for each in self.alive:
            if each.is_stopped:
                each.go_on()
            each.terminate()
        for each in self.processes:
            if await each.ended(10.0) is None:
                await each.kill()


async def came_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within that time."""
    patience = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > patience:
            return False
        await asyncio.sleep(_TURN_SECONDS)
    return True
