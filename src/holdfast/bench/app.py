"""The handlers that the benchmark's workers run."""

import time

from holdfast import Holdfast, RunningJob

app = Holdfast()


@app.handler("bench.nothing")
async def do_nothing(job: RunningJob[object]) -> None:
    """What is measured is everything but the work."""


@app.handler("bench.stamp")
async def stamp(_job: RunningJob[object]) -> float:
    """When it was started, by the clock that it shares with the process that enqueued it."""
    return time.time()
