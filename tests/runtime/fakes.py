"""Runners that do what a test tells them to."""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.domain.budget import Budget
from holdfast.domain.runner import RunnerReport


class FakeRunner:
    """Due in `due` seconds; in its turn it calls `act`."""

    def __init__(self, name: str, act: Callable[[Budget], Awaitable[None]] | None = None) -> None:
        self.name = name
        self.due: float | None = 0.0
        self.turns = 0
        self.stopped = False
        self.closed_with: float | None = None
        self.turned = asyncio.Event()
        self._act = act

    def due_in(self) -> float | None:
        return self.due

    def wake(self) -> None:
        self.due = 0.0

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:
        self.turns += 1
        self.turned.set()
        if self._act is not None:
            await self._act(budget)
        return RunnerReport(self.name, processed=1)

    def stop(self) -> None:
        self.stopped = True

    async def close(self, seconds: float) -> RunnerReport | None:
        self.closed_with = seconds
        return None
