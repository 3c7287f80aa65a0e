"""Checks of the tables that processes keep up to date: schedules, runs, and listeners for wake-ups."""

from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast.doctor.findings import Finding, Level, Limits, plural, some
from holdfast.domain.cron import in_place, parse_timetable
from holdfast.domain.duration import rough
from holdfast.domain.errors import InvalidInput
from holdfast.store.postgres.examine import ComingOccurrence, Examiner


async def check_schedules(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    schedules = await examiner.schedules(limits.late, limits.run, limits.counted)
    late = [f"{each.name} by {rough(each.late_by)}" for each in schedules if not each.paused]
    paused = [each.name for each in schedules if each.paused]
    if late:
        yield Finding(
            "schedules",
            Level.WARNING,
            f"late: {some(late, limits)}",
            "run a worker or `holdfast tick` of the app that declares them; remove those that no app declares anymore",
        )
    if paused:
        yield Finding(
            "schedules", Level.WARNING, f"paused: {some(paused, limits)}", "resume them when they are needed again"
        )
    ahead = [f"{each.name} by {rough(by)}" for each in await examiner.coming(limits.counted) if (by := _ahead_by(each))]
    if ahead:
        yield Finding(
            "schedules",
            Level.WARNING,
            f"ahead of their timetables: {some(ahead, limits)}",
            "the clock was ahead when they advanced: a worker or `holdfast tick` puts them back within a minute",
        )
    if not schedules and not ahead:
        yield Finding("schedules", Level.OK, "none is late, paused or ahead")


def _ahead_by(coming: ComingOccurrence) -> timedelta:
    try:
        timetable = parse_timetable(coming.timetable, coming.zone)
        return coming.next_occurrence - in_place(timetable, coming.next_occurrence, coming.last_occurrence, coming.now)
    except InvalidInput:
        # A newer release may understand this timetable.
        return timedelta(0)


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
        "if that replica is gone, the next run of the same name ends this one; if not, its runner hangs",
    )


async def check_listeners(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    lost = await examiner.lost_sleepers(limits.sleeper)
    if lost.processes and lost.oldest is not None:
        silent = (
            f"{plural(lost.processes, 'process')} stopped listening for wake-ups, the first {rough(lost.oldest)} ago"
        )
        if lost.waiting:
            others = f"{plural(lost.waiting, 'other process')} still {'listens' if lost.waiting == 1 else 'listen'}"
            line, step = f"{silent}; {others}", "it died or its listener is stuck: check its log"
        else:
            line = f"{silent}; no other process listens"
            step = "make sure a worker is running; a busy worker does not listen, and one with a stuck listener polls"
        yield Finding("listeners", Level.WARNING, line, step)
    else:
        yield Finding("listeners", Level.OK, "all processes that listen for wake-ups respond")
