"""What happens to those who run a store: its disk fills, its schema is changed under load."""

import asyncio
import time
from dataclasses import replace
from uuid import UUID

from uuid_utils.compat import uuid7

from holdfast.faults.app import EFFECT, WORK
from holdfast.faults.case import Need, case
from holdfast.faults.disk import fill
from holdfast.faults.judge import LOST, TARGET
from holdfast.faults.lab import Broken, Lab
from holdfast.faults.record import What
from holdfast.faults.sql_files import fault_statement
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_connection
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.sql_files import newest_version

_OLD = "holdfast_old"
_BATCH = 50
_DRAINED_SECONDS = 20.0


@case(
    "R22",
    "the disk of the server fills up while jobs are enqueued and done",
    large={"jobs": 4_000, "fills": 3, "seconds": 6},
    needs=[Need.TMPFS, Need.OWN_SERVER],
)
async def a_full_disk(lab: Lab) -> None:
    """PostgreSQL refuses what it can, and gives up when it cannot write its log; then it is started again."""
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
    lab.check("enqueues that were refused", refused * _BATCH, "jobs", at_least=1)


@case(
    "R24",
    "the schema is migrated while producers are at work, and workers of other releases are there",
    large={"jobs": 20_000, "producers": 4},
    needs=[Need.OWN_SERVER],
)
async def a_migration(lab: Lab) -> None:
    """Workers refuse a schema that they do not know; producers in plain SQL notice nothing; running workers go on."""
    connection = await open_connection(lab.url)
    try:
        await Migrator(connection, _OLD).migrate(newest_version() - 1)
        await connection.execute(fault_statement("effects", _OLD))
    finally:
        await connection.close()
    lab.place = replace(lab.place, schema=_OLD)
    await _refused(lab, "an older schema")
    ids = [uuid7() for _ in range(lab.count("jobs"))]
    stop = asyncio.Event()
    producing = [
        asyncio.create_task(_produce(lab, ids[start :: lab.count("producers")], stop))
        for start in range(lab.count("producers"))
    ]
    await asyncio.sleep(2.0)
    started = time.monotonic()
    await migrate(lab.url, _OLD)
    lab.note("the migration took", time.monotonic() - started, "s")
    await asyncio.sleep(1.0)
    stop.set()
    lab.check("longest enqueue meanwhile", max(await asyncio.gather(*producing)), "s", at_most=1.0)
    async with lab.workers(2):
        lab.faulted()
        await lab.drained(lab.lease + 4 * _DRAINED_SECONDS)
        await lab.fetch("add_later_migration")
        await _refused(lab, "a newer schema")
        await _produce(lab, [uuid7() for _ in range(200)], asyncio.Event())
        lab.faulted()
        await lab.drained(lab.lease + _DRAINED_SECONDS)


async def _refused(lab: Lab, what: str) -> None:
    said = await lab.command("worker", lab.worker_app, "--store", lab.url, "--schema", lab.schema)
    if said.code == 0 or "schema" not in said.output or "Traceback" in said.output:
        lab.violation(TARGET, f"a worker that meets {what} ends with {said.code} and says {said.output!r}")


async def _produce(lab: Lab, ids: list[UUID], stop: asyncio.Event) -> float:
    """The longest that an enqueue took."""
    connection = await lab.connect()
    longest = 0.0
    try:
        for id in ids:
            if stop.is_set():
                break
            lab.record.note(What.ENQUEUING, id, kind=WORK)
            started = time.monotonic()
            (row,) = await connection.fetch(fault_statement("enqueue_plain", lab.schema), WORK, "{}", id)
            longest = max(longest, time.monotonic() - started)
            lab.record.note(What.ACCEPTED, id)
            if row["id"] != id:
                lab.violation(LOST, f"the enqueue of {id} was answered with {row['id']}", id)
    finally:
        connection.terminate()
    return longest
