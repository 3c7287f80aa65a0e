"""What happens to operators of a store: its disk fills up, and its schema changes under load."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from uuid import UUID

from uuid_utils.compat import uuid7

from holdfast_lab.faults.app import EFFECT, WORK
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.crew import Broken, Crew
from holdfast_lab.faults.disk import fill
from holdfast_lab.faults.judge import LOST, TARGET
from holdfast_lab.faults.lab import Lab, Launch
from holdfast_lab.faults.later_release import IN_LABORATORY
from holdfast_lab.faults.record import What
from holdfast_lab.faults.sql_files import fault_statement

_LATER = Launch("holdfast_lab.faults.later_release", given={IN_LABORATORY: "1"})
_BATCH = 50
_DRAINED_SECONDS = 20.0
_BEFORE_SECONDS, _AFTER_SECONDS = 2.0, 1.0
_LASTING_SECONDS = 30.0
_PRODUCER_SECONDS = 0.01
_LOOK_SECONDS = 0.02
_LEAST_STARTS = 100


@case(
    "R22",
    "the disk of the server fills up while jobs are enqueued and done",
    large={"jobs": 4_000, "fills": 3, "seconds": 6},
    needs=[Need.TMPFS, Need.OWN_SERVER],
)
async def a_full_disk(lab: Lab) -> None:
    """PostgreSQL refuses what it can, and stops when it cannot write its log; then it is started again."""
    disk = lab.server.disk
    if disk is None:
        raise Broken("there is no small disk")
    jobs, fills, payload = lab.count("jobs"), lab.count("fills"), {"seconds": 0.02, "text": "x" * 2000}
    refused = 0
    async with lab.workers(2) as crew:

        async def enqueue(number: int) -> None:
            nonlocal refused
            for first in range(0, number, _BATCH):
                kind = EFFECT if first // _BATCH % 4 == 3 else WORK
                refused += not await lab.enqueue_many(kind, _BATCH, payload)
                await asyncio.sleep(0.05)

        for number in range(fills):
            enqueuing = asyncio.create_task(enqueue(jobs // fills))
            await asyncio.sleep(lab.random.uniform(0.2, 1.0))
            ballast = await asyncio.to_thread(fill, disk)
            lab.cut_off()
            await asyncio.sleep(lab.size["seconds"])
            ballast.unlink()
            await lab.server.start()
            lab.back()
            await enqueuing
            lab.progress(f"filled {number + 1} of {fills} times")
        lab.faulted()
        await lab.drained(lab.lease + _DRAINED_SECONDS)
        if len(crew.alive) < len(crew.processes):
            lab.violation(TARGET, "a worker ended because the disk was full")
    lab.check("enqueues refused", refused * _BATCH, "jobs", at_least=1)


@case(
    "R24",
    "the schema is migrated under load, while workers of other releases are running",
    large={"jobs": 20_000, "producers": 4},
    needs=[Need.OWN_SERVER],
)
async def a_migration(lab: Lab) -> None:
    """Migrates to a later release that changes tables and functions.

    Workers of this release continue alongside those of the later one. A worker that starts on a schema version other
    than its own is refused.
    """
    await _refused(lab, "an older schema", _LATER)
    async with lab.workers(2) as old:
        lasting = await _enqueue_lasting(lab)
        async with _producing(lab, lab.count("jobs")):
            await lab.until_started(lasting)
            await lab.until(lambda: _started_by(lab, old) >= _LEAST_STARTS, "workers are at work before the migration")
            await _migrated(lab)
            migrated = _started_by(lab, old)
            await _refused(lab, "a newer schema", Launch())
            async with lab.workers(1, launch=_LATER) as new:
                await lab.until(lambda: _started_by(lab, new) > 0, "a worker of the later release is at work")
                wanted = migrated + _LEAST_STARTS
                await lab.until(lambda: _started_by(lab, old) >= wanted, "old workers go on after the migration")
        lab.check("jobs of old workers after the migration", _started_by(lab, old) - migrated, at_least=_LEAST_STARTS)
        if any(note.job in lasting for note in lab.notes() if note.what is What.END):
            lab.violation(TARGET, "jobs that should have outlasted the migration have ended")
        for each in old.processes:
            if not each.is_alive or "Traceback" in each.output():
                lab.violation(TARGET, f"an old worker ended or met an error: {each.output()[-500:]}")
        lab.faulted()
        await lab.drained(_LASTING_SECONDS + 4 * _DRAINED_SECONDS)
    lab.expect_one_start(lasting)


async def _enqueue_lasting(lab: Lab) -> list[UUID]:
    """Enqueue jobs that start before the migration and end after it, each longer than its lease."""
    ids = [uuid7() for _ in range(4)]
    await _produce(lab, ids, asyncio.Event(), [WORK], f'{{"seconds": {_LASTING_SECONDS}}}')
    return ids


def _started_by(lab: Lab, crew: Crew) -> int:
    pids = {each.pid for each in crew.processes}
    return sum(note.what is What.START and note.pid in pids for note in lab.notes())


async def _migrated(lab: Lab) -> None:
    """Migrate with the later release's command under load. No statement may wait long for a lock."""
    over = asyncio.Event()
    watching = lab.beside(_longest_wait(lab, over))
    try:
        await asyncio.sleep(_BEFORE_SECONDS)
        lab.faulted()
        said = await lab.command("migrate", "--store", lab.url, "--schema", lab.schema, launch=_LATER)
        if said.code:
            raise Broken(f"the schema was not migrated: {said.output[-500:]}")
        lab.faulted()
        await asyncio.sleep(_AFTER_SECONDS)
    finally:
        over.set()
    lab.check("longest wait for a lock", await watching, "s", at_most=1.0)


async def _longest_wait(lab: Lab, over: asyncio.Event) -> float:
    connection = await lab.connect()
    longest = 0.0
    try:
        while not over.is_set():
            longest = max(longest, await connection.fetchval(fault_statement("longest_wait", lab.schema)))
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        connection.terminate()
    return longest


async def _refused(lab: Lab, what: str, launch: Launch) -> None:
    said = await lab.command(
        "worker", "--app", lab.worker_app, "--store", lab.url, "--schema", lab.schema, launch=launch
    )
    if said.code == 0 or "schema" not in said.output or "Traceback" in said.output:
        lab.violation(TARGET, f"a worker that finds {what} ends with {said.code} and prints {said.output!r}")


@asynccontextmanager
async def _producing(lab: Lab, jobs: int) -> AsyncIterator[None]:
    """Several producers enqueue while the block runs, at most `jobs` jobs in total. None of them may wait long."""
    ids, stop, producers = [uuid7() for _ in range(jobs)], asyncio.Event(), lab.count("producers")
    producing = [lab.beside(_produce(lab, ids[start::producers], stop)) for start in range(producers)]
    try:
        yield
        if all(each.done() for each in producing):
            lab.violation(TARGET, f"all {jobs} jobs were enqueued too early, before the block ended")
    finally:
        stop.set()
        longest = await asyncio.gather(*producing)
    lab.check("longest enqueue", max(longest), "s", at_most=1.0)


async def _produce(
    lab: Lab, ids: Sequence[UUID], stop: asyncio.Event, kinds: Sequence[str] = (WORK, WORK, EFFECT), payload: str = "{}"
) -> float:
    """Return the longest time that an enqueue took."""
    connection = await lab.connect()
    longest = 0.0
    try:
        for id, kind in zip(ids, cycle(kinds), strict=False):
            if stop.is_set():
                break
            lab.record.note(What.ENQUEUING, id, kind=kind)
            started = time.monotonic()
            (row,) = await connection.fetch(fault_statement("enqueue_plain", lab.schema), kind, payload, id)
            longest = max(longest, time.monotonic() - started)
            lab.record.note(What.ACCEPTED, id)
            if row["id"] != id:
                lab.violation(LOST, f"the enqueue of {id} returned {row['id']}", id)
            await asyncio.sleep(_PRODUCER_SECONDS)
    finally:
        connection.terminate()
    return longest
