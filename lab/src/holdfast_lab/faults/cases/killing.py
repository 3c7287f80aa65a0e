"""Workers that are killed."""

import asyncio
import time
from random import Random

from holdfast_lab.faults.app import EFFECT, EXIT, SEGFAULT, WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Crew
from holdfast_lab.faults.judge import INNOCENT_DEATH, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import Attempt, Note, What

_BATCH = 50
_WORKERS = 3
_SECONDS_PER_KILL = 1.2
_DRAINED_SECONDS = 10.0
_NOISE_SECONDS = 1.0
_TURN_SECONDS = 0.05


@case(
    "R1",
    "workers are killed with SIGKILL under load",
    small={"jobs": 2_000, "kills": 10},
    large={"jobs": 10_000, "kills": 50},
)
async def kills(lab: Lab) -> None:
    """The effect of one job in four is a row committed together with its end."""
    jobs, kills = lab.count("jobs"), lab.count("kills")
    async with lab.workers(_WORKERS) as crew:
        # A separate source of chance, because the seed cannot decide which of the two tasks draws first.
        loads = Random(lab.random.getrandbits(32))  # noqa: S311 - a plan, not a secret
        enqueuing = lab.beside(_enqueue(lab, jobs, loads, _SECONDS_PER_KILL * kills))
        for number in range(kills):
            await asyncio.sleep(lab.random.uniform(0.2, 0.8))
            victim = lab.random.choice(await _at_work(lab, crew))
            await victim.kill()
            lab.faulted()
            await crew.start()
            lab.progress(f"{number + 1} of {kills} killed")
        await enqueuing
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    lab.check("attempts interrupted by a kill", _interrupted(lab), at_least=kills)


def _interrupted(lab: Lab) -> int:
    running: dict[Attempt, Note] = {}
    interrupted: set[Attempt] = set()
    for note in lab.notes():
        match note.what:
            case What.START:
                running[note.attempt] = note
            case What.END:
                running.pop(note.attempt, None)
            case What.KILL:
                interrupted |= {attempt for attempt, start in running.items() if start.pid == note.pid}
    return len(interrupted)


async def _at_work(lab: Lab, crew: Crew) -> list[FaultyProcess]:
    """Workers with a job that has started and not ended; all workers, if there are none for a while."""
    patience = time.monotonic() + _NOISE_SECONDS
    while time.monotonic() < patience:
        running: dict[Attempt, Note] = {}
        for note in lab.notes():
            if note.what is What.START:
                running[note.attempt] = note
            elif note.what is What.END:
                running.pop(note.attempt, None)
        working = {note.pid for note in running.values()}
        if busy := [each for each in crew.alive if each.pid in working]:
            return busy
        await asyncio.sleep(_TURN_SECONDS)
    return crew.alive


async def _enqueue(lab: Lab, jobs: int, random: Random, seconds: float) -> None:
    """Spread over the whole time, so that the last kill still meets a busy worker."""
    for first in range(0, jobs, _BATCH):
        kind = EFFECT if first // _BATCH % 4 == 3 else WORK
        await lab.enqueue_many(kind, min(_BATCH, jobs - first), {"seconds": random.choice([0, 0.05, 0.3])})
        await asyncio.sleep(seconds * _BATCH / jobs)


@case("R5", "workers are killed and restarted under the same name", small={"kills": 3}, large={"kills": 20})
async def rebirths(lab: Lab) -> None:
    """A worker with a dead worker's name must neither keep that one's leases alive nor take them too early."""
    slowest = 0.0
    async with lab.workers(1, replica="phoenix") as crew:
        for number in range(lab.count("kills")):
            jobs = await lab.enqueue_many(WORK, 8, {"seconds": 60, "again": 0})
            await lab.until_started(jobs)
            await asyncio.sleep(lab.random.uniform(0, lab.lease / 3))
            await crew.alive[0].kill()
            killed = time.monotonic()
            lab.faulted()
            await crew.start()
            possible = max(killed + lab.lease, time.monotonic())
            if await lab.until_started(jobs, times=2):
                starts = lab.starts()
                slowest = max(slowest, *(starts[job][1].at - possible for job in jobs))
            lab.progress(f"{number + 1} reborn")
        await lab.drained(lab.lease + _DRAINED_SECONDS)
        jobs = await lab.enqueue_many(WORK, 4, {"seconds": 2 * lab.lease})
        await lab.until_started(jobs)
        await crew.start()
        lab.faulted()
        await lab.drained(2 * lab.lease + _DRAINED_SECONDS)
    lab.expect_one_start(jobs)
    # A worker looks for expired leases three times per lease.
    lab.check("restarted after the end of the lease", slowest, "s", at_most=lab.lease / 3 + _NOISE_SECONDS)


@case(
    "R8",
    "jobs kill their worker while it runs 200 other jobs",
    small={"innocent": 200, "guilty": 1},
    large={"innocent": 200, "guilty": 5},
    lease=2.0,
)
async def deadly_jobs(lab: Lab) -> None:
    """Jobs call os._exit or cause a segmentation fault. A dead worker is restarted, as by a supervisor."""
    innocent = lab.count("innocent")
    async with lab.workers(1, concurrency=innocent + 50) as crew:
        neighbours = await lab.enqueue_many(WORK, innocent, {"seconds": 60, "again": 0})
        await lab.until_started(neighbours)
        guilty = await lab.enqueue_many(EXIT, lab.count("guilty"))
        guilty += await lab.enqueue_many(SEGFAULT, lab.count("guilty"))
        deaths = await _supervised(lab, crew, 30.0 * len(guilty))
        await lab.drained(_DRAINED_SECONDS)
    states = await lab.states()
    for job in guilty:
        if states.get(job) != "dead":
            lab.violation(TARGET, f"job {job}: kills its workers, but is {states.get(job)}", job)
    for job in neighbours:
        if states.get(job) != "succeeded":
            lab.violation(INNOCENT_DEATH, f"job {job}: has killed no worker, but is {states.get(job)}", job)
    # After two crashes alongside other jobs, each job may crash one more worker alone.
    lab.check("workers that died", deaths, at_most=3 * len(guilty))


async def _supervised(lab: Lab, crew: Crew, seconds: float) -> int:
    """Restart workers until every job is final or the time is over. Returns how many workers died."""
    patience = time.monotonic() + seconds
    deaths = 0
    while await lab.open_jobs() and time.monotonic() < patience:
        if not crew.alive:
            deaths += 1
            lab.faulted()
            await crew.start()
        await asyncio.sleep(_TURN_SECONDS)
    return deaths
