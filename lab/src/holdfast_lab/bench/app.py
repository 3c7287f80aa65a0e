"""The benchmark's jobs and the handlers that its workers run."""

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
    """Measures everything except the work."""


@app.handler(STAMP)
async def stamp(_job: RunningJob[object]) -> float:
    """Return when the handler started, on the clock that it shares with the enqueuing process."""
    return time.time()


def payload(number: int) -> dict[str, str]:
    """A payload of exactly `PAYLOAD_BYTES` bytes as JSON."""
    return {"text": str(number).zfill(_TEXT_BYTES)}


def new_jobs(count: int, kind: str = NOTHING) -> list[NewJob]:
    return [app.job(kind, payload(number)) for number in range(count)]
