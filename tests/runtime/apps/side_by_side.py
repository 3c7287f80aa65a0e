"""A slow job and slow runners alongside fast ones, for test_side_by_side.py."""

import asyncio

from holdfast import Holdfast, RunningJob
from holdfast.schedules import Occurrence
from tests.runtime.apps.effects import note, until_there

app = Holdfast()


@app.handler("slow", queue="slow", limit=1)
async def slow(job: RunningJob[object]) -> None:
    await note("slow started", job.id)
    await until_there("gate")
    await note("slow ended", job.id)


@app.handler("quick", queue="quick")
async def quick(job: RunningJob[object]) -> None:
    await note("quick", job.id)


@app.schedule("every 1s", name="each second", missed="all", queue="quick")
async def each_second(job: RunningJob[object]) -> None:
    await note(f"job {job.headers['holdfast.occurrence']}", job.id)


@app.runner("beat", "every 1s", missed="all")
async def beat(occurrence: Occurrence) -> None:
    assert occurrence.at is not None
    await note(f"beat {occurrence.at.isoformat()}")


@app.runner("drag", "every 1s")
async def drag(occurrence: Occurrence) -> None:
    """Takes as long as three and a half of its intervals."""
    assert occurrence.at is not None
    await note(f"drag started {occurrence.at.isoformat()}")
    await asyncio.sleep(3.5)
    await note("drag ended")
