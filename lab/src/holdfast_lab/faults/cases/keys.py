"""Conflicts: producers that want the same key, and transactions that block a rescue or a schedule."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.scheduling.job_schedules import OCCURRENCE_HEADER, SCHEDULE_HEADER
from holdfast_lab.faults.app import WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.judge import DUPLICATE, LOST, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.record import What
from holdfast_lab.faults.sql_files import fault_statement

if TYPE_CHECKING:
    from holdfast.domain.enqueued import Enqueued
    from holdfast.domain.job import NewJob

_ENDINGS = ("commit", "roll back", "hang up")
_PRODUCERS = 4
_TURN_SECONDS = 0.02
_PATIENCE = 8.0
"""Less than the ten seconds for which producers wait for each other."""
_LOCKED, _FREE = "fault.locked", "fault.free"
_LOCKED_SECONDS = 2.5
_RESCUED_SECONDS = 3.0
"""After the end of a lease: workers look for expired ones three times per lease, and may have just started."""
_DRAINED_SECONDS = 10.0


@case(
    "R25",
    "the holder of a key rolls back or hangs up; rescue and schedules meet the locks of others",
    small={"keys": 15, "replaced": 6},
    large={"keys": 200, "replaced": 8},
    lease=2.0,
)
async def conflicts(lab: Lab) -> None:
    """No matter what happens to the holder, each key must have one job, and all producers must get its id."""
    for name in (_LOCKED, _FREE):
        await lab.producer.schedules.save(name, "every 1s", kind=WORK, payload={}, missed="all")
    async with lab.workers(2) as crew:
        locking = lab.beside(_lock_a_schedule(lab))
        for number in range(lab.count("keys")):
            await _race(lab, f"key {number}", _ENDINGS[number % len(_ENDINGS)])
        running = await _run_with_keys(lab)
        for each in crew.alive:
            await each.kill()
        lab.faulted()
        # No worker runs until the leases are over. The rescue then meets transactions that hold the keys, or a lease.
        (locked, *_), met = list(running.values()), list(running.items())[1:]
        (unlocked, *replaced), _ = await asyncio.gather(
            asyncio.gather(_lock_a_lease(lab, locked.id), *(_replace_late(lab, key, old) for key, old in met)),
            crew.start(2),
        )
        await locking
        for name in (_LOCKED, _FREE):
            await lab.producer.schedules.pause(name)
        lab.faulted()
        await lab.drained(lab.lease + _DRAINED_SECONDS)
        # All these jobs have ended, so each race makes one more. It starts late, to be live for all that ask.
        for number in range(lab.count("keys")):
            ending = _ENDINGS[number % len(_ENDINGS)]
            await _race(lab, f"key {number}", ending, if_exists="keep_live", delay="2s")
        lab.faulted()
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    again = {job: starts[1].at for job, starts in lab.starts().items() if len(starts) > 1}
    rescued = sum(again.get(old.id, until) < until for (_, old), until in zip(met, replaced, strict=True))
    lab.check("rescued while another transaction held their keys", rescued, "jobs", at_least=len(met))
    if locked.id not in again or again[locked.id] < unlocked:
        lab.violation(TARGET, f"job {locked.id}: was not rescued, or was while its lease was locked", locked.id)
    for name in (_LOCKED, _FREE):
        await _check_occurrences(lab, name)


async def _race(lab: Lab, key: str, ending: str, if_exists: str = "keep", delay: str | None = None) -> None:
    holder = await lab.connect()
    jobs = (lab.producer.job(WORK, {}, key=key, if_exists=if_exists, delay=delay) for _ in range(_PRODUCERS + 1))
    job, *others = jobs
    for each in (job, *others):
        lab.record.note(What.ENQUEUING, each.id, kind=WORK)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await lab.producer.enqueue(job, conn=holder)
        asking = [lab.beside(lab.producer.enqueue_many([each])) for each in others]
        await _until_waiting(lab, asking)
        match ending:
            case "commit":
                await transaction.commit()
            case "roll back":
                await transaction.rollback()
            case _:
                holder.terminate()
        answers = [(await each)[0] for each in asking]
    finally:
        holder.terminate()
    _check_race(lab, key, job.id if ending == "commit" else None, answers)
    made = answers[0].id
    for each in (job, *others):
        lab.record.note(What.ACCEPTED if each.id == made else What.REFUSED, each.id)


async def _until_waiting(lab: Lab, asking: "Sequence[asyncio.Task[list[Enqueued]]]") -> None:
    """Wait until all of them wait for the holder, because otherwise there is no race."""
    loop = asyncio.get_running_loop()
    patience = loop.time() + _PATIENCE
    while (await lab.fetch("count_waiting"))[0]["count"] < len(asking):
        if loop.time() > patience or any(each.done() for each in asking):
            lab.violation(TARGET, f"not all of {len(asking)} producers of the same key wait for its holder")
            return
        await asyncio.sleep(_TURN_SECONDS)


def _check_race(lab: Lab, key: str, committed: UUID | None, answers: "Sequence[Enqueued]") -> None:
    told = {each.id for each in answers}
    if len(told) != 1:
        lab.violation(DUPLICATE, f"{key}: producers got the ids of {len(told)} jobs")
    if committed is not None and told != {committed}:
        lab.violation(LOST, f"{key}: its holder committed, but the others got the id of another job")
    new = sum(each.is_new for each in answers) + (committed is not None)
    if new != 1:
        lab.violation(DUPLICATE, f"{key}: {new} producers were told that their job is new")


async def _run_with_keys(lab: Lab) -> "dict[str, NewJob]":
    """Start jobs with keys, so that a later job with the same key must coexist with a running one."""
    running = {}
    for number in range(lab.count("replaced")):
        key = f"running {number}"
        running[key] = job = lab.producer.job(WORK, {"seconds": 1.0}, key=key)
        lab.record.note(What.ENQUEUING, job.id, kind=WORK)
    await lab.producer.enqueue_many(list(running.values()))
    for job in running.values():
        lab.record.note(What.ACCEPTED, job.id)
    ids = {job.id for job in running.values()}
    await lab.until(
        lambda: ids <= {note.job for note in lab.notes() if note.what is What.START}, "jobs with keys are running"
    )
    return running


async def _replace_late(lab: Lab, key: str, old: "NewJob") -> float:
    """Replace a job while its lease runs out and it is rescued; half roll back. Returns when the rescue was seen."""
    job = lab.producer.job(WORK, {}, key=key, if_exists="replace")
    lab.record.note(What.ENQUEUING, job.id, kind=WORK)
    is_kept = lab.random.random() < 0.5
    connection = await lab.connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        enqueued = await lab.producer.enqueue(job, conn=connection)
        if not enqueued.is_new:
            lab.violation(LOST, f"{key}: a job that ran was replaced", old.id)
        is_rescued = f"{key}: its job is rescued while another transaction holds the key"
        await lab.until(lambda: len(lab.starts().get(old.id, ())) > 1, is_rescued, _PATIENCE)
        over = time.monotonic()
        await (transaction.commit() if is_kept else transaction.rollback())
    finally:
        connection.terminate()
    lab.record.note(What.ACCEPTED if is_kept else What.REFUSED, job.id)
    return over


async def _lock_a_lease(lab: Lab, job: UUID) -> float:
    """Lock a lease, like a transaction about to finish the job, until others are rescued. Returns when that ended."""
    connection = await lab.connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(fault_statement("lock_lease", lab.schema), job)
        await asyncio.sleep(lab.lease + _RESCUED_SECONDS)
        over = time.monotonic()
        await transaction.rollback()
    finally:
        connection.terminate()
    return over


async def _lock_a_schedule(lab: Lab) -> None:
    """Lock a schedule for a while, like a transaction that changes it by hand and then rolls back."""
    connection = await lab.connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(fault_statement("lock_schedule", lab.schema), _LOCKED)
        await asyncio.sleep(_LOCKED_SECONDS)
        await transaction.rollback()
    finally:
        connection.terminate()


async def _check_occurrences(lab: Lab, name: str) -> None:
    rows = await lab.fetch("read_occurrences", name, SCHEDULE_HEADER, OCCURRENCE_HEADER)
    lab.adopt(WORK, (row["id"] for row in rows))
    lab.check(f"jobs of the schedule {name}", len(rows), at_least=3)
    for before, row in pairwise(rows):
        first, second = before["occurrence"], row["occurrence"]
        if second - first != timedelta(seconds=1):
            lab.violation(
                DUPLICATE if first == second else LOST,
                f"{name}: the job of {first.isoformat()} is followed by that of {second.isoformat()}",
                row["id"],
            )
