"""Jobs that are faults themselves, and the jobs next to them."""

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


@case("R31", "jobs of an unhandled kind wait for a worker that handles it", small={"jobs": 20}, large={"jobs": 1_000})
async def unhandled(lab: Lab) -> None:
    """The unhandled jobs come first in their queue. Meanwhile one worker ends and another one starts."""
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
    lab.check("unhandled jobs listed", len(listed), at_least=number)
    lab.check("unhandled jobs counted", counted, at_least=number)
    for job in listed:
        if job.attempt:
            lab.violation(TARGET, f"job {job.id}: no worker handles it, but it is at attempt {job.attempt}", job.id)


@case(
    "R32",
    "one bad job, of each type in turn, is claimed together with 49 others",
    small={"rounds": 1},
    large={"rounds": 20},
)
async def bad_neighbours(lab: Lab) -> None:
    """Stops at the first job that does harm, because what a damaged worker does with the next one proves nothing."""
    ways = [*BAD_ENDS, _INVALID] * lab.count("rounds")
    finished = 0
    # Twice as many slots as jobs, because the first look of a woken worker takes at most half of them.
    async with lab.workers(1, concurrency=2 * _TOGETHER) as crew:
        for how in ways:
            finished += await _bad_among_others(lab, crew, how)
            if not crew.alive:
                lab.violation(TARGET, f"{how}: the worker ended")
            if lab.violations:
                break
    lab.note("types of bad jobs", len(ways))
    lab.check("neighbors that finished", finished, at_least=len(ways) * (_TOGETHER - 1))


async def _bad_among_others(lab: Lab, crew: Crew, how: str) -> int:
    """Return how many of the other jobs succeeded."""
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
        lab.violation(TARGET, f"{how}: the job is {ended}, not {' or '.join(sorted(wanted))}", jobs[place])
    innocent = [job for job in jobs if job != jobs[place]]
    for job in innocent:
        if states.get(job) != "succeeded":
            lab.violation(LOST, f"{how}: the neighbor {job} is {states.get(job)}", job)
    lab.expect_one_start(innocent)
    ((claims,),) = await lab.fetch("count_claims", jobs)
    lab.check("claims of a bad job and its neighbors", claims, at_most=1)
    return sum(states.get(job) == "succeeded" for job in innocent)
