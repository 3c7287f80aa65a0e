"""A pooler between Holdfast and PostgreSQL, through which everything reaches the store."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from holdfast.domain.errors import StoreUnavailable
from holdfast.scheduling.job_schedules import OCCURRENCE_HEADER, SCHEDULE_HEADER
from holdfast.store.contract import Canceling
from holdfast_lab.faults.app import EFFECT, FLAKY, THREAD, WORK
from holdfast_lab.faults.bouncer import Bouncer
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.cases.clocks import check_inline, check_occurrences
from holdfast_lab.faults.crew import Broken, Crew
from holdfast_lab.faults.judge import DUPLICATE, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.record import What
from holdfast_lab.faults.whole_app import EACH_SECOND, HAPPENED, INLINE, SNOOZY, TOLD, WHOLE_APP

_POOL = 4
"""Connections to the server: fewer than two workers alone would use."""
_DRAINED_SECONDS = 20.0
_PATIENCE = 30.0
_TURN_SECONDS = 0.05
_UNHEARD = ("prepared statement", "lease keeper cannot reach the store", "Traceback")
"""Must not appear in any worker's log: the keeper bypasses the pooler, so it does not notice that it was killed."""

Answer = TypeVar("Answer")


@case(
    "R18",
    "everything goes through PgBouncer in transaction mode; PgBouncer is killed once, as are two workers",
    large={"rounds": 40},
    needs={Need.PGBOUNCER},
)
async def pooled(lab: Lab) -> None:
    """A bit of everything in each round. Only the address tells producers and workers that PgBouncer is there."""
    rounds = lab.count("rounds")
    keys: dict[UUID, str] = {}
    with lab.proxy() as server, Bouncer(server.url, lab.folder / "pgbouncer", pool=_POOL) as bouncer:
        through = lab.workers(2, WHOLE_APP, url=bouncer.url, listen_url=lab.url)
        async with lab.producing(bouncer.url, listen_url=lab.url), through as crew:
            for number in range(rounds):
                fault = _fault(lab, number, rounds, bouncer, crew)
                await asyncio.gather(fault, _round(lab, number, keys))
                lab.progress(f"{number + 1} of {rounds} rounds")
            for name in (EACH_SECOND, INLINE):
                await lab.producer.schedules.pause(name)
            lab.faulted()
            await lab.drained(lab.lease + _DRAINED_SECONDS)
            check_logs(lab, crew, _UNHEARD)
    rows = await lab.fetch("read_occurrences", EACH_SECOND, SCHEDULE_HEADER, OCCURRENCE_HEADER)
    lab.adopt(EACH_SECOND, (row["id"] for row in rows))
    check_occurrences(lab, [row["occurrence"] for row in rows], rounds)
    await check_inline(lab, rounds // 2)
    there = {row["id"] for name in ("read_final", "read_open") for row in await lab.fetch(name)}
    for key, jobs in Counter(keys[id] for id in there if id in keys).items():
        if jobs != 1:
            lab.violation(DUPLICATE, f"the key {key!r} has {jobs} jobs")
    lab.note("jobs", len(there))


async def _fault(lab: Lab, number: int, rounds: int, bouncer: Bouncer, crew: Crew) -> None:
    """Kill a worker after a quarter and after three quarters of the rounds, and PgBouncer in the middle."""
    pause = lab.random.uniform(0.0, 0.5)
    victim = lab.random.choice(crew.alive)
    if number == rounds // 2:
        await asyncio.sleep(pause)
        await asyncio.to_thread(bouncer.kill)
        lab.faulted()
        await asyncio.sleep(pause)
        await asyncio.to_thread(bouncer.start)
        lab.faulted()
    elif number in (rounds // 4, 3 * rounds // 4):
        await asyncio.sleep(pause)
        await victim.kill()
        lab.faulted()
        await crew.start()


async def _round(lab: Lab, number: int, keys: dict[UUID, str]) -> None:
    singles = [await lab.enqueue(kind) for kind in (WORK, EFFECT, THREAD, FLAKY)]
    await lab.enqueue_many(WORK, 200)
    await lab.enqueue_many(EFFECT, 8, {"seconds": 0.2})
    await lab.enqueue_many(FLAKY, 4, {"failures": 2})
    await lab.enqueue_many(SNOOZY, 3, {"until": time.time() + 0.5})
    long = await lab.enqueue(WORK, {"seconds": 1.5 * lab.lease})
    for _ in range(2):
        await _keyed(lab, f"key {number}", keys)
    await _canceled(lab)
    published = await _surely(lambda: lab.producer.publish(HAPPENED, {}, key=f"event {number}"))
    lab.adopt(TOLD, (job.id for job in published.jobs))
    waited = [id for id in (*singles, long if number % 4 == 0 else None) if id is not None]
    for job in (await _surely(lambda: lab.producer.wait_many(waited, f"{_PATIENCE:g}s"))).values():
        if job.state != "succeeded":
            lab.violation(TARGET, f"job {job.id}: was waited for, but is {job.state}", job.id)


async def _keyed(lab: Lab, key: str, keys: dict[UUID, str]) -> None:
    job = lab.producer.job(WORK, {}, key=key)
    keys[job.id] = key
    lab.record.note(What.ENQUEUING, job.id, kind=WORK)
    (enqueued,) = await _surely(lambda: lab.producer.enqueue_many([job]))
    lab.record.note(What.ACCEPTED, enqueued.id)


async def _canceled(lab: Lab) -> None:
    """Cancel one waiting and one running job."""
    waiting = await lab.enqueue(WORK, delay=timedelta(hours=1))
    running = await lab.enqueue(WORK, {"seconds": 60, "again": 60})
    if running is not None:
        await lab.until_started([running])
    given = [id for id in (waiting, running) if id is not None]
    lab.record.note_each(What.CANCEL, given)
    answers = await _surely(lambda: lab.producer.cancel(given))
    wanted = {Canceling.CANCELED, Canceling.REQUESTED, Canceling.FINAL}
    if not wanted.issuperset(answers):
        lab.violation(TARGET, f"waiting and running jobs could not be canceled: {answers}")


async def _surely(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat the call while the pooler is away."""
    patience = time.monotonic() + _PATIENCE
    while time.monotonic() < patience:
        try:
            return await ask()
        except StoreUnavailable:
            await asyncio.sleep(_TURN_SECONDS)
    raise Broken("PgBouncer accepts no connections")


def check_logs(lab: Lab, crew: Crew, unheard: Sequence[str]) -> None:
    for each in crew.processes:
        for words in unheard:
            if words in each.output():
                lab.violation(TARGET, f"{words!r} in the log of process {each.pid}")
