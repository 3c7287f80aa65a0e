"""What the measured workers run."""

import asyncio
import time

from holdfast import Holdfast, RunningJob

app = Holdfast()


@app.handler("nothing")
async def nothing(job: RunningJob[object]) -> None:
    """What is measured is everything but the work."""


@app.handler("sleep", timeout="1h")
async def sleep(job: RunningJob[float]) -> None:
    await asyncio.sleep(job.payload)


@app.handler("stamp")
async def stamp(_job: RunningJob[object]) -> float:
    """When it was started, by the clock that it shares with the process that enqueued it."""
    return time.time()


@app.handler("scheduled")
async def scheduled(job: RunningJob[object]) -> None:
    """Its lateness is in the store."""


@app.runner("inline runner", "every 1s", missed="all")
async def inline() -> None:
    """Its lateness is in the store."""
