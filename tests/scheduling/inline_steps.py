"""What the tests of inline runners share: functions that a test holds up, and the way to a first slot."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.scheduling.inline import InlineRunner
from holdfast.scheduling.schedules import InlineSlot
from tests.databases import StoreCase
from tests.scheduling.schedule_steps import MINUTE, once


class Gated:
    """A function that says when it was called and waits for the test; as `async def` and as plain `def`."""

    def __init__(self) -> None:
        self.slots: list[InlineSlot] = []
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.canceled = 0

    async def run(self, slot: InlineSlot) -> dict[str, object]:
        self.slots.append(slot)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        return {"calls": len(self.slots)}

    def run_blocking(self, slot: InlineSlot) -> dict[str, object]:
        self.slots.append(slot)
        assert self.thread_gate.wait(60)
        return {"calls": len(self.slots)}


async def quick(slot: InlineSlot) -> dict[str, object]:
    return {"slot": str(slot.slot)}


@asynccontextmanager
async def closing(*runners: InlineRunner) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for runner in runners:
            await runner.close(0)


async def at_its_first_slot(case: StoreCase, *runners: InlineRunner) -> None:
    """Declared by a first look, then the clock moves on to the first slot."""
    for runner in runners:
        assert (await once(runner)).processed == 0
    await case.clock.advance(MINUTE)
