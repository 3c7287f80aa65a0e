"""RabbitMQ goes away and comes back."""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from holdfast import Holdfast
from holdfast_lab.faults.app import WORK
from holdfast_lab.faults.broker import OwnBroker, broker_program
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import latencies
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import What

_POLL_SECONDS = 2.0
_DRAINED_SECONDS = 10.0
_JOBS_MEANWHILE = 20
_BACK_SECONDS = 30.0


@case(
    "D44",
    "RabbitMQ is stopped and started again while jobs arrive",
    small={"restarts": 2},
    large={"restarts": 10},
    needs={Need.RABBITMQ},
)
async def broker_restarts(lab: Lab) -> None:
    """Wake-ups come through RabbitMQ only, so a job that starts before the next poll was rung for."""
    async with _running(lab) as broker, _ringing(lab, broker.url) as app:
        poll = f"{_POLL_SECONDS:g}s"
        async with lab.workers(1, listen="false", rabbitmq_url=broker.url, poll=poll) as crew:
            (worker,) = crew.processes
            await _rung(lab, app)
            for number in range(1, lab.count("restarts") + 1):
                await asyncio.to_thread(broker.stop)
                lab.faulted()
                jobs = [await _enqueue(lab, app) for _ in range(_JOBS_MEANWHILE)]
                starting = lab.beside(asyncio.to_thread(broker.start))
                lab.check("slowest start without a broker", await _slowest(lab, jobs), "s", at_most=_POLL_SECONDS + 1)
                await starting
                lab.progress(f"{number} of {lab.count('restarts')} restarts")
                await lab.until(lambda: _is_back(worker, number), "wake-ups are back", _BACK_SECONDS)  # noqa: B023
                await _rung(lab, app)
            await lab.drained(_DRAINED_SECONDS + _BACK_SECONDS)


def _is_back(worker: FaultyProcess, times: int) -> bool:
    """Whether the worker has reported this many losses of wake-ups, and that they are back."""
    said = worker.output()
    return said.count("no wake-ups") >= times and said.count("wake-ups are back") >= times


@asynccontextmanager
async def _running(lab: Lab) -> AsyncIterator[OwnBroker]:
    program = broker_program()
    if program is None:
        raise Broken("RabbitMQ is not installed")
    folder = lab.folder / "rabbitmq"
    folder.mkdir()
    broker = OwnBroker(program, folder)
    await asyncio.to_thread(broker.start)
    try:
        yield broker
    finally:
        await asyncio.to_thread(broker.stop)


@asynccontextmanager
async def _ringing(lab: Lab, url: str) -> AsyncIterator[Holdfast]:
    app = Holdfast(lab.url, schema=lab.schema)
    app.settings = app.settings.changed(rabbitmq_url=url)
    async with app:
        yield app


async def _enqueue(lab: Lab, app: Holdfast) -> UUID:
    job = app.job(WORK)
    lab.record.note(What.ENQUEUING, job.id, kind=WORK)
    await app.enqueue_many([job])
    lab.record.note(What.ACCEPTED, job.id)
    return job.id


async def _slowest(lab: Lab, jobs: list[UUID]) -> float:
    await lab.until(lambda: latencies(lab.notes()).keys() >= set(jobs), "every job starts")
    found = latencies(lab.notes())
    return max(found.get(job, float("inf")) for job in jobs)


async def _rung(lab: Lab, app: Holdfast) -> None:
    """Of a few jobs that arrive one by one, most must start before the next look."""
    found = []
    for _ in range(3):
        # A worker's first looks after a job come in quick succession.
        await asyncio.sleep(lab.random.uniform(0.4, 0.6))
        found.append(await _slowest(lab, [await _enqueue(lab, app)]))
    lab.check("median start after a ring", statistics.median(found), "s", at_most=_POLL_SECONDS / 4)
