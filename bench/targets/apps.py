"""The apps of the measured workers, one per handler, because each further kind adds a lane to look at."""

import asyncio
import time
from dataclasses import replace

from holdfast import Holdfast, RunningJob
from holdfast.domain.handlers import Room, make_handler

NOTHING, STAMP, THREAD, SLEEP, BLOCKED = "nothing", "stamp", "thread", "sleep", "blocked"
SLEEP_SECONDS = 0.01
_LONGER_THAN_ANY_DRAIN = 3600.0

nothing = Holdfast()
stamping = Holdfast()
threads = Holdfast()
sleeping = Holdfast()
pausing = Holdfast()
limited = Holdfast()


@pausing.handler(NOTHING)
@limited.handler(NOTHING)
@nothing.handler(NOTHING)
async def do_nothing(job: RunningJob[object]) -> None:
    """Measures everything except the work."""


@stamping.handler(STAMP)
async def stamp(_job: RunningJob[object]) -> float:
    """Return when the handler started, on the clock that it shares with the enqueuing process."""
    return time.time()


@threads.handler(THREAD)
def do_nothing_in_a_thread(job: RunningJob[object]) -> None:
    """Measures the way to the thread and back."""


@sleeping.handler(SLEEP)
async def sleep(_job: RunningJob[object]) -> None:
    await asyncio.sleep(SLEEP_SECONDS)


async def never(_job: RunningJob[object]) -> None:
    raise AssertionError("a kind without room was run")


@limited.handler(BLOCKED, limit=1, timeout="2h")
async def take_long(_job: RunningJob[object]) -> None:
    await asyncio.sleep(_LONGER_THAN_ANY_DRAIN)


def _no_room() -> Room:
    return Room(0)


# No command pauses a kind, but a handler without room leaves its jobs in the store, just as a pause would.
pausing.handlers.add(replace(make_handler(BLOCKED, never), room=_no_room))
