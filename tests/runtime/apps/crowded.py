"""Jobs for several competing workers, for test_crowds.py."""

from holdfast import Holdfast, RunningJob
from tests.runtime.apps.effects import note, until_there

app = Holdfast()


@app.handler("quick")
async def quick(job: RunningJob[object]) -> None:
    await note("done", job.id)


@app.handler("gated")
async def gated(job: RunningJob[str]) -> None:
    await note("started", job.id)
    await until_there(job.payload)


@app.handler("limited", limit=1)
async def limited(job: RunningJob[str]) -> None:
    await gated(job)


@app.handler("again", attempts=2, backoff="steps 1s")
async def again(job: RunningJob[object]) -> None:
    await note(f"attempt {job.attempt}", job.id)
    if job.attempt == 1:
        raise ValueError("not yet")
