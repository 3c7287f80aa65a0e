"""Runners that run at every tick: `@app.runner("sync", "every tick")`.

In the store they are runners with an interval, the worker's poll interval. At its start, each process asks for one
extra run, so that `holdfast tick` runs them no matter how little time has passed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.domain.cron import LONGEST, SHORTEST, parse_timetable
from holdfast.scheduling.schedules import Declared
from holdfast.store.schedules import ScheduleStore

EVERY_TICK = "every tick"


def at_every_poll(declared: Iterable[Declared], poll: timedelta) -> list[Declared]:
    """Give every-tick runners the poll interval as their timetable."""
    seconds = min(max(SHORTEST, poll), LONGEST) // timedelta(seconds=1)
    timetable = parse_timetable(f"every {seconds}s", "UTC")
    return [
        replace(each, timing=replace(each.timing, timetable=timetable)) if each.is_every_tick else each
        for each in declared
    ]


async def ask_for_runs(store: ScheduleStore, declared: Sequence[Declared]) -> None:
    """Ask for a run of each runner that is not due anyway. Paused runners are left alone."""
    now = await store.now()
    await store.declare([each.as_new(now) for each in declared])
    names = {each.name for each in declared}
    for schedule in await store.list():
        if schedule.name in names and schedule.next_occurrence > now and not schedule.paused and not schedule.run_now:
            await store.run_now(schedule.name)
