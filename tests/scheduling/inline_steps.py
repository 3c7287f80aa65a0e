"""Helpers for the tests of inline runners: functions that the test can block, and a way to a first occurrence."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.scheduling.inline import InlineRunner
from holdfast.scheduling.schedules import Occurrence
from tests.databases import StoreCase
from tests.scheduling.schedule_steps import MINUTE, once


class Gated:
    """A function that records each call and waits for the test, as `async def` and as plain `def`."""

    def __init__(self) -> None:
        self.occurrences: list[Occurrence] = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.canceled = 0

    async def run(self, occurrence: Occurrence) -> dict[str, object]:
        self.occurrences.append(occurrence)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        return {"calls": len(self.occurrences)}

    def run_blocking(self, occurrence: Occurrence) -> dict[str, object]:
        self.occurrences.append(occurrence)
        assert self.thread_gate.wait(60)
        return {"calls": len(self.occurrences)}


async def quick(occurrence: Occurrence) -> dict[str, object]:
    return {"occurrence": str(occurrence.at)}


@asynccontextmanager
async def closing(*runners: InlineRunner) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for runner in runners:
            await runner.close(0)


async def at_its_first_occurrence(case: StoreCase, *runners: InlineRunner) -> None:
    """Let a first look declare the runners, then move the clock to the first occurrence."""
    for runner in runners:
        assert (await once(runner)).processed == 0
    await case.clock.advance(MINUTE)
