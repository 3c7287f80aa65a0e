"""Checks of what processes left in the tables: schedules, runs and those who wait for wake-ups."""

from collections.abc import AsyncIterator

from holdfast.doctor.findings import Finding, Level, Limits, plural, some
from holdfast.domain.duration import rough
from holdfast.store.postgres.examine import Examiner


async def check_schedules(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    schedules = await examiner.schedules(limits.late, limits.run, limits.counted)
    late = [f"{each.name} by {rough(each.late_by)}" for each in schedules if not each.paused]
    paused = [each.name for each in schedules if each.paused]
    if late:
        yield Finding(
            "schedules",
            Level.WARNING,
            f"late: {some(late, limits)}",
            "run a worker or `holdfast tick` of the app that declares them; remove what no app declares any more",
        )
    if paused:
        yield Finding(
            "schedules", Level.WARNING, f"paused: {some(paused, limits)}", "resume them when they are wanted again"
        )
    if not schedules:
        yield Finding("schedules", Level.OK, "none is late or paused")


async def check_runs(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    runs = await examiner.unfinished_runs(limits.run, limits.counted)
    if not runs:
        yield Finding("runs", Level.OK, f"none has lasted longer than {rough(limits.run)}")
        return
    lasting = [f"{run.name} on {run.replica} for {rough(run.lasting)}" for run in runs]
    yield Finding(
        "runs",
        Level.WARNING,
        f"not finished: {some(lasting, limits)}",
        "if that replica is gone, the next run of the same name ends it; if it is there, its runner hangs",
    )


async def check_listeners(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    lost = await examiner.lost_sleepers(limits.sleeper)
    if lost.processes and lost.oldest is not None:
        silent = (
            f"{plural(lost.processes, 'process')} that waited for wake-ups fell silent up to {rough(lost.oldest)} ago"
        )
        if lost.waiting:
            others = f"{plural(lost.waiting, 'other process')} {'waits' if lost.waiting == 1 else 'wait'}"
            line, step = f"{silent}, while {others} for them", "it died or its listener is stuck: look in its log"
        else:
            line = f"{silent}, and no process waits for them now"
            step = "see that a worker runs; one that is busy waits for nothing, and one whose listener is stuck polls"
        yield Finding("listeners", Level.WARNING, line, step)
    else:
        yield Finding("listeners", Level.OK, "nobody who waits for wake-ups fell silent")
