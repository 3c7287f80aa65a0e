"""The app for test_ticks_at_once.py: jobs that succeed at once, on the second try or later, and schedules."""

import asyncio

from holdfast import Holdfast, RunningJob, Snooze
from holdfast.backoff import steps
from holdfast.schedules import Occurrence
from tests.runtime.apps.effects import note, was_noted

app = Holdfast()


@app.handler("plain")
async def plain(job: RunningJob[object]) -> None:
    await note("done", job.id, job.fence)


@app.handler("flaky", queue="other", backoff=steps("100ms"))
async def flaky(job: RunningJob[object]) -> None:
    if job.attempt == 1:
        raise RuntimeError("not the first time")
    await note("done", job.id, job.fence)


@app.handler("patient")
async def patient(job: RunningJob[object]) -> None:
    # A snooze does not count as an attempt, so the job itself does not show that it was snoozed.
    if not await was_noted("snoozed", job.id):
        await note("snoozed", job.id, job.fence)
        raise Snooze("100ms")
    await note("done", job.id, job.fence)


@app.schedule("every 1s", name="each second", missed="all", missed_limit=10_000)
async def each_second(job: RunningJob[object]) -> None:
    await note("done", job.id, job.fence)


@app.schedule("* * * * *", name="each minute", missed="all")
async def each_minute(job: RunningJob[object]) -> None:
    await note("done", job.id, job.fence)


@app.runner("cycle", "every 5s", missed="all")
async def cycle(occurrence: Occurrence) -> dict[str, int]:
    assert occurrence.at is not None
    await note(f"start {occurrence.at.isoformat()}")
    await asyncio.sleep(0.02)
    await note(f"end {occurrence.at.isoformat()}")
    return {"seen": 1}
