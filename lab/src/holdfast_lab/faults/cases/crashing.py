"""Workers that die at named points of the engine."""

import asyncio

from holdfast.domain.crash_points import VARIABLE
from holdfast.scheduling.job_schedules import OCCURRENCE_HEADER, SCHEDULE_HEADER
from holdfast_lab.faults.app import EFFECT, FLAKY, WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.cases.clocks import check_inline, check_occurrences, until_occurrence_done
from holdfast_lab.faults.crew import Crew
from holdfast_lab.faults.judge import DUPLICATE, LOST, TARGET
from holdfast_lab.faults.lab import Lab, Launch
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import What
from holdfast_lab.faults.whole_app import EACH_SECOND, INLINE, TELLS, TOLD, WHOLE_APP

# The points in a worker. tests/faults covers those of producers, relays and maintenance, which each die there once.
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
# The points in a worker with schedules and subscribers.
_POINTS_OF_WHOLE = (
    "publish.before",
    "publish.after",
    "occurrence.before",
    "occurrence.after",
    "inline.before",
    "inline.after",
    "inline.before_commit",
    "inline.marked",
)
_DEATH_SECONDS = 20.0
_CAUGHT_UP_SECONDS = 180.0
"""While workers were dead or starting, the inline runner missed occurrences; it makes them up one after another."""
_DRAINED_SECONDS = 10.0


@case("R9", "workers die many times at each named point of the engine", large={"times": 20}, lease=2.0)
async def crash_points(lab: Lab) -> None:
    """One worker at a time, with a healthy one after each, so that no job meets two deaths that it did not cause."""
    died = 0
    times = lab.count("times")
    for point in _POINTS:
        for _ in range(times):
            died += await _die_once(lab, point)
        lab.progress(f"{point}: {times} times")
    # These come last, because from now on the schedule makes a job every second.
    for point in _POINTS_OF_WHOLE:
        for _ in range(times):
            died += await _die_once(lab, point, WHOLE_APP)
        lab.progress(f"{point}: {times} times")
    await _check_whole(lab, times)
    lab.note("points", len(_POINTS) + len(_POINTS_OF_WHOLE))
    lab.note("deaths", died)


async def _die_once(lab: Lab, point: str, app: str | None = None) -> bool:
    crash = Launch(given={VARIABLE: f"{point}:{lab.random.choice(_TIMES.get(point, (1,)))}"})
    if point.startswith("rescue"):
        await _leave_leases(lab)
    # Do not wait for it: it may die before it reports that it works.
    crew = Crew(lambda: lab.start_worker(app, launch=crash))
    (worker,) = crew.add()
    try:
        await lab.enqueue_many(WORK, 10, {"seconds": lab.random.choice([0, 0.01, 0.1])})
        await lab.enqueue_many(WORK, 2, {"seconds": 1.5 * lab.lease})
        await lab.enqueue_many(EFFECT, 6)
        await lab.enqueue_many(FLAKY, 2)
        if app == WHOLE_APP:
            await lab.enqueue_many(TELLS, 4)
        is_dead = await _death(lab, worker, is_told=point.startswith("shutdown"))
    finally:
        await crew.close()
    if not is_dead:
        lab.violation(TARGET, f"the point {point} was not reached within {_DEATH_SECONDS:g} s")
    lab.faulted()
    async with lab.workers(1, app):
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    return is_dead


async def _check_whole(lab: Lab, times: int) -> None:
    """There must be one job for each occurrence and each event, no matter which workers died."""
    async with lab.workers(1, WHOLE_APP):
        await until_occurrence_done(lab, _CAUGHT_UP_SECONDS)
        for name in (EACH_SECOND, INLINE):
            await lab.producer.schedules.pause(name)
        lab.faulted()
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    rows = await lab.fetch("read_occurrences", EACH_SECOND, SCHEDULE_HEADER, OCCURRENCE_HEADER)
    lab.adopt(EACH_SECOND, (row["id"] for row in rows))
    check_occurrences(lab, [row["occurrence"] for row in rows], times)
    await check_inline(lab, times)
    final = await lab.fetch("read_final")
    lab.adopt(TOLD, (row["id"] for row in final if row["kind"] == TOLD))
    events = sum(row["kind"] == TELLS for row in final)
    if (told := sum(row["kind"] == TOLD for row in final)) != events:
        lab.violation(DUPLICATE if told > events else LOST, f"{events} events made {told} jobs")


_TIMES = {"handler.before": (1, 5, 12), "handler.after": (1, 5, 10), "finish.before": (1, 2), "finish.after": (1, 2)}
"""On which visit to die, at points that a worker reaches more than once."""


async def _leave_leases(lab: Lab) -> None:
    """Leave leases for a rescue."""
    async with lab.workers(1) as crew:
        ids = await lab.enqueue_many(WORK, 3, {"seconds": 60, "again": 0})
        await lab.until_started(ids)
        await crew.processes[0].kill()


async def _death(lab: Lab, worker: FaultyProcess, *, is_told: bool) -> bool:
    if is_told:
        await lab.until(lambda: "worker started" in worker.output(), "a worker starts")
        await asyncio.sleep(0.3)
        worker.terminate()
    is_dead = await worker.ended(_DEATH_SECONDS) is not None and worker.exit_code == -9
    if is_dead:
        lab.record.note(What.KILL, pid=worker.pid)
    return is_dead
