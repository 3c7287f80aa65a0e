"""The app of the measured workers."""

import asyncio
import time

from holdfast import Holdfast, RunningJob

app = Holdfast()


@app.handler("nothing")
async def nothing(job: RunningJob[object]) -> None:
    """Measures everything except the work."""


@app.handler("sleep", timeout="1h")
async def sleep(job: RunningJob[float]) -> None:
    await asyncio.sleep(job.payload)


@app.handler("stamp")
async def stamp(_job: RunningJob[object]) -> float:
    """Return when the handler started, on the clock that it shares with the enqueuing process."""
    return time.time()


@app.handler("scheduled")
async def scheduled(job: RunningJob[object]) -> None:
    """Do nothing: the store knows how late the job was."""


@app.runner("inline runner", "every 1s", missed="all")
async def inline() -> None:
    """Do nothing: the store knows how late the run was."""
