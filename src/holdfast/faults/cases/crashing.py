"""Workers that die at named points of the engine."""

import asyncio

from holdfast.crash_points import VARIABLE
from holdfast.faults.app import EFFECT, FLAKY, WORK
from holdfast.faults.case import case
from holdfast.faults.judge import TARGET
from holdfast.faults.lab import Lab, Launch
from holdfast.faults.processes import FaultyProcess
from holdfast.faults.record import What

# Those of a worker. tests/faults has the others, of producers, schedules, relays and maintenance: each dies once there.
_POINTS = (
    "claim.answered",
    "claim.held",
    "handler.before",
    "handler.after",
    "finish_in.before",
    "finish_in.after",
    "finish.before",
    "finish.after",
    "finish.reported",
    "renew.before",
    "renew.after",
    "rescue.before",
    "rescue.after",
    "shutdown.release",
    "shutdown.outcomes",
)
_DEATH_SECONDS = 20.0
_DRAINED_SECONDS = 10.0


@case("R9", "workers die at named points of the engine, each many times", large={"times": 20}, lease=2.0)
async def crash_points(lab: Lab) -> None:
    """One worker at a time, and a healthy one after each: no job meets two deaths that are not its own."""
    died = 0
    times = lab.count("times")
    for point in _POINTS:
        for _ in range(times):
            died += await _die_once(lab, point)
        lab.progress(f"{point}: {times} times")
    lab.note("points", len(_POINTS))
    lab.note("deaths", died)


async def _die_once(lab: Lab, point: str) -> bool:
    crash = Launch(given={VARIABLE: f"{point}:{lab.random.choice(_TIMES.get(point, (1,)))}"})
    if point.startswith("rescue"):
        await _leave_leases(lab)
    async with lab.workers(1, launch=crash) as crew:
        (worker,) = crew.processes
        await lab.enqueue_many(WORK, 10, {"seconds": lab.random.choice([0, 0.01, 0.1])})
        await lab.enqueue_many(WORK, 2, {"seconds": 1.5 * lab.lease})
        await lab.enqueue_many(EFFECT, 6)
        await lab.enqueue_many(FLAKY, 2)
        is_dead = await _death(lab, worker, is_told=point.startswith("shutdown"))
    if not is_dead:
        lab.violation(TARGET, f"the point {point} was not reached within {_DEATH_SECONDS:g} s")
    lab.faulted()
    async with lab.workers(1):
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    return is_dead


_TIMES = {"handler.before": (1, 5, 12), "handler.after": (1, 5, 10), "finish.before": (1, 2), "finish.after": (1, 2)}
"""At the how manieth time, where it comes more than once."""


async def _leave_leases(lab: Lab) -> None:
    """Something to rescue."""
    async with lab.workers(1) as crew:
        ids = await lab.enqueue_many(WORK, 3, {"seconds": lab.lease, "again": 0})
        await lab.until_started(ids)
        await crew.processes[0].kill()


async def _death(lab: Lab, worker: FaultyProcess, *, is_told: bool) -> bool:
    if is_told:
        await asyncio.sleep(0.3)
        worker.terminate()
    is_dead = await worker.ended(_DEATH_SECONDS) is not None and worker.exit_code == -9
    if is_dead:
        lab.record.note(What.KILL, pid=worker.pid)
    return is_dead
