"""Schedules as rows: the columns sent and the values read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.domain.cron import Missed
from holdfast.domain.json_text import Json
from holdfast.store.schedules import DueSchedules, JobTemplate, NewSchedule, Origin, Schedule

if TYPE_CHECKING:
    import asyncpg


def columns(schedules: Sequence[NewSchedule]) -> tuple[list[object], ...]:
    jobs = [schedule.job for schedule in schedules]
    return (
        [schedule.name for schedule in schedules],
        [schedule.timetable for schedule in schedules],
        [schedule.zone for schedule in schedules],
        [schedule.missed.value for schedule in schedules],
        [schedule.missed_limit for schedule in schedules],
        [schedule.origin.value for schedule in schedules],
        [schedule.first_occurrence for schedule in schedules],
        [job and job.kind for job in jobs],
        [job and job.payload for job in jobs],
        [job and job.queue for job in jobs],
        [job and job.priority for job in jobs],
        [job and job.tenant for job in jobs],
        [job and job.headers for job in jobs],
        [job and job.max_attempts for job in jobs],
    )


def due_schedules(rows: "list[asyncpg.Record]") -> DueSchedules:
    first = rows[0]
    return DueSchedules(first["now"], [schedule(row) for row in rows if row["name"] is not None], first["next_in"])


def schedule(row: "asyncpg.Record") -> Schedule:
    return Schedule(
        name=row["name"],
        timetable=row["timetable"],
        zone=row["zone"],
        missed=Missed(row["missed"]),
        missed_limit=row["missed_limit"],
        job=None if row["kind"] is None else _template(row),
        origin=Origin(row["origin"]),
        next_occurrence=row["next_occurrence"],
        last_occurrence=row["last_occurrence"],
        paused=row["paused"],
        run_now=row["run_now"],
    )


def _template(row: "asyncpg.Record") -> JobTemplate:
    return JobTemplate(
        kind=row["kind"],
        payload=Json(row["payload"]),
        queue=row["queue"],
        priority=row["priority"],
        tenant=row["tenant"],
        headers=row["headers"],
        max_attempts=row["max_attempts"],
    )
