"""Helpers for the tests of schedules and runs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypedDict, Unpack

from holdfast.domain.cron import Missed
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json, encode
from holdfast.store.schedules import DueSchedules, JobTemplate, NewRun, NewSchedule, Origin, Schedule, ScheduleStore
from tests.databases import StoreCase
from tests.store_contract.steps import START, job

MINUTE = timedelta(minutes=1)
TEMPLATE = JobTemplate("work", encode({"month": 7}))
RESULT = Json('{"dropped":0}')


class ScheduleOptions(TypedDict, total=False):
    name: str
    timetable: str
    zone: str
    missed: Missed
    missed_limit: int
    job: JobTemplate | None
    origin: Origin
    first_occurrence: datetime


def new_schedule(**options: Unpack[ScheduleOptions]) -> NewSchedule:
    complete: ScheduleOptions = {
        "name": "report",
        "timetable": "* * * * *",
        "zone": "UTC",
        "missed": Missed.ONCE,
        "missed_limit": 100,
        "job": TEMPLATE,
        "origin": Origin.CODE,
        "first_occurrence": START + MINUTE,
        **options,
    }
    return NewSchedule(**complete)


async def declared(case: StoreCase, **options: Unpack[ScheduleOptions]) -> Schedule:
    new = new_schedule(**options)
    await case.schedules.declare([new])
    return await shown_schedule(case, new.name)


async def shown_schedule(case: StoreCase, name: str = "report") -> Schedule:
    (found,) = [schedule for schedule in await case.schedules.list() if schedule.name == name]
    return found


async def due_schedule(case: StoreCase, **options: Unpack[ScheduleOptions]) -> Schedule:
    """Declare a schedule and move the clock to its first occurrence."""
    schedule = await declared(case, **options)
    await case.clock.freeze(schedule.next_occurrence)
    return schedule


def names(due: DueSchedules) -> list[str]:
    return [schedule.name for schedule in due.due]


async def advanced(
    schedules: ScheduleStore,
    schedule: Schedule,
    next_occurrence: datetime | None = None,
    jobs: Sequence[NewJob] | None = None,
    occurrence: datetime | None = None,
) -> bool:
    """Advance by a minute with one job, unless the options say otherwise."""
    return await schedules.advance(
        schedule,
        next_occurrence or schedule.next_occurrence + MINUTE,
        [job()] if jobs is None else jobs,
        NewRun(schedule.name, "me", occurrence or schedule.next_occurrence),
        RESULT,
    )
