"""The application under test: a module-level app with handlers of every isolation."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from holdfast import Cancel, Holdfast, Permanent, RunningJob, Snooze
from holdfast.backoff import steps

app = Holdfast("postgresql://nobody@nowhere.invalid/never", schema="billing")


@dataclass(frozen=True, slots=True)
class Invoice:
    number: int
    copies: int = 1


sent: list[str] = []


@contextmanager
def nothing_sent_before() -> Iterator[list[str]]:
    sent.clear()
    yield sent
    sent.clear()


@app.handler("invoice.send")
async def send(job: RunningJob[Invoice]) -> dict[str, int]:
    if job.payload.number < 0:
        raise LookupError(f"no invoice {job.payload.number}")
    sent.append(f"invoice {job.payload.number}")
    await app.enqueue("invoice.remind", {"number": job.payload.number}, delay="2d", key=str(job.payload.number))
    return {"sent": job.payload.copies}


@app.handler("invoice.remind", queue="slow")
def remind(job: RunningJob[Invoice]) -> None:
    sent.append(f"reminder {job.payload.number}")


@app.handler("invoice.print", isolation="process")
def print_out(job: RunningJob[Invoice]) -> int:
    if job.payload.number < 0:
        raise LookupError(f"no invoice {job.payload.number}")
    return os.getpid()


@app.handler("invoice.state", isolation="process")
def use_state(job: RunningJob[None]) -> list[object]:
    return [job.state, os.getpid()]


@app.handler("invoice.flaky", attempts=3, backoff=steps("1m", "10m"))
async def flaky(job: RunningJob[dict[str, int]]) -> None:
    if job.attempt <= job.payload["failures"]:
        raise ConnectionError(f"attempt {job.attempt}")
    sent.append(f"after {job.attempt} attempts")


@app.handler("invoice.signal")
async def signal(job: RunningJob[dict[str, str]]) -> object:
    match job.payload["signal"]:
        case "snooze":
            return Snooze("5m")
        case "cancel":
            raise Cancel("not wanted")
        case _:
            raise Permanent("NO_ADDRESS", "the customer has no address")


@app.handler("invoice.again")
async def again(job: RunningJob[dict[str, object]]) -> None:
    await app.enqueue("invoice.again", delay=timedelta(minutes=1))


@app.schedule("every 1h", name="hourly")
async def close_the_hour(job: RunningJob[dict[str, object]]) -> None:
    sent.append("hour closed")
