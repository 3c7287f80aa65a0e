"""The jobs of the benchmark, and the handlers that its workers run."""

import time

from holdfast import Holdfast, RunningJob
from holdfast.domain.job import NewJob

app = Holdfast()

NOTHING = "bench.nothing"
STAMP = "bench.stamp"
PAYLOAD_BYTES = 100
_TEXT_BYTES = PAYLOAD_BYTES - len('{"text":""}')


@app.handler(NOTHING)
async def do_nothing(job: RunningJob[object]) -> None:
    """What is measured is everything but the work."""


@app.handler(STAMP)
async def stamp(_job: RunningJob[object]) -> float:
    """When it was started, by the clock that it shares with the process that enqueued it."""
    return time.time()


def payload(number: int) -> dict[str, str]:
    """As JSON it has exactly `PAYLOAD_BYTES` bytes."""
    return {"text": str(number).zfill(_TEXT_BYTES)}


def new_jobs(count: int, kind: str = NOTHING) -> list[NewJob]:
    return [app.job(kind, payload(number)) for number in range(count)]
