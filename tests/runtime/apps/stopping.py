"""The app of the processes that test_shutdown.py stops."""

import asyncio

from holdfast import Holdfast, RunningJob
from holdfast.backoff import steps
from tests.runtime.apps.effects import is_there, note, until_there

app = Holdfast()
# An interruption counts as an attempt, and these jobs are interrupted again and again.
MANY = 100


@app.handler("short", attempts=MANY, backoff=steps("10ms"))
async def short(job: RunningJob[object]) -> None:
    await asyncio.sleep(0.002)
    await note("done", job.id, job.fence)


@app.handler("long", attempts=MANY, backoff=steps("10ms"))
async def long(job: RunningJob[object]) -> None:
    """Runs until the gate is open. While the gate is closed, only an interruption ends it."""
    await note("started", job.id, job.fence)
    await until_there("gate")
    await note("done", job.id, job.fence)


@app.runner("cycle", "every 1s")
async def cycle() -> None:
    await note("cycle started")
    if not is_there("gate"):
        await asyncio.sleep(0.5)
    await note("cycle ended")
