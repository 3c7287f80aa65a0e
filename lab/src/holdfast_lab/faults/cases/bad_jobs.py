"""Jobs that are a fault themselves, and their neighbours."""

import asyncio

from holdfast.domain.job import JobState
from holdfast.store.contract import JobFilter
from holdfast_lab.faults.app import BAD, NOBODYS, WORK
from holdfast_lab.faults.bad_ends import BAD_ENDS, FINE, NOT_BAD
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Crew
from holdfast_lab.faults.judge import LOST, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.record import What

_TOGETHER = 50
_OTHER_APP = "holdfast_lab.faults.other_app:app"
_DRAINED_SECONDS = 20.0
_TURN_SECONDS = 0.2
_INVALID = "payload of another type"


@case("R31", "jobs of a kind that nobody handles wait for somebody who does", small={"jobs": 20}, large={"jobs": 1_000})
async def unhandled(lab: Lab) -> None:
    """They come first in their queue, and meanwhile a worker is ended and another one begins."""
    jobs = lab.count("jobs")
    lab.unhandled = (NOBODYS,)
    nobodys = await lab.enqueue_many(NOBODYS, jobs, priority=0)
    for _ in range(2):
        async with lab.workers(1):
            others = await lab.enqueue_many(WORK, jobs)
            await lab.drained(_DRAINED_SECONDS)
        lab.expect_one_start(others)
        await _expect_ready(lab, len(nobodys))
        lab.faulted()
    lab.unhandled = ()
    async with lab.workers(1, _OTHER_APP):
        await lab.drained(_DRAINED_SECONDS)
    lab.expect_one_start(nobodys)


async def _expect_ready(lab: Lab, number: int) -> None:
    reader = lab.producer.jobs
    listed = await reader.list(JobFilter(kind=NOBODYS, state=JobState.READY), number + 1)
    counted = (await reader.count())[JobState.READY]
    lab.check("unhandled jobs that are listed", len(listed), at_least=number)
    lab.check("unhandled jobs that are counted", counted, at_least=number)
    for job in listed:
        if job.attempt:
            lab.violation(TARGET, f"job {job.id}: nobody handles it, and it is at attempt {job.attempt}", job.id)


@case(
    "R32",
    "one bad job is claimed together with 49 others, in every way to be bad",
    small={"rounds": 1},
    large={"rounds": 20},
)
async def bad_neighbours(lab: Lab) -> None:
    """Up to the first one that does harm: what a damaged worker does with the next says nothing."""
    ways = [*BAD_ENDS, _INVALID] * lab.count("rounds")
    finished = 0
    # Twice as many slots, because the first look of a worker that was woken takes no more than half of them.
    async with lab.workers(1, concurrency=2 * _TOGETHER) as crew:
        for how in ways:
            finished += await _bad_among_others(lab, crew, how)
            if not crew.alive:
                lab.violation(TARGET, f"{how}: the worker has ended")
            if lab.violations:
                break
    lab.note("ways to be bad", len(ways))
    lab.check("neighbours that finished", finished, at_least=len(ways) * (_TOGETHER - 1))


async def _bad_among_others(lab: Lab, crew: Crew, how: str) -> int:
    """How many of the others have succeeded."""
    lab.progress(how)
    payloads: list[object] = [{"how": FINE, "seconds": 0.1} for _ in range(_TOGETHER)]
    place = lab.random.randrange(_TOGETHER)
    payloads[place] = "text" if how == _INVALID else {"how": how, "seconds": lab.random.choice([0, 0.05])}
    jobs = await lab.enqueue_each(BAD, payloads)
    if how == _INVALID or how.startswith("result"):
        lab.record.note(What.UNUSABLE, jobs[place])
    lab.faulted()
    waiting = lab.beside(lab.producer.wait_many(jobs, f"{_DRAINED_SECONDS:g}s"))
    while crew.alive and not waiting.done():
        await asyncio.wait([waiting], timeout=_TURN_SECONDS)
    waiting.cancel()
    await asyncio.wait([waiting])
    states = await lab.states()
    ended = states.get(jobs[place])
    wanted = {"succeeded"} if how in NOT_BAD else {"failed", "dead"}
    if ended not in wanted:
        lab.violation(TARGET, f"{how}: the job is {ended}, and not {' or '.join(sorted(wanted))}", jobs[place])
    innocent = [job for job in jobs if job != jobs[place]]
    for job in innocent:
        if states.get(job) != "succeeded":
            lab.violation(LOST, f"{how}: the neighbour {job} is {states.get(job)}", job)
    lab.expect_one_start(innocent)
    ((claims,),) = await lab.fetch("count_claims", jobs)
    lab.check("claims of a bad job and its neighbours", claims, at_most=1)
    return sum(states.get(job) == "succeeded" for job in innocent)
