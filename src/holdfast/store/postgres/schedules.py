"""Schedules on PostgreSQL. The lock of inline runners is in lock.py."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json
from holdfast.store.postgres.lock import PostgresSingleton, held_lock
from holdfast.store.postgres.schedule_rows import columns, due_schedules, schedule
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.schedules import DueSchedules, NewRun, NewSchedule, Origin, Schedule


class PostgresSchedules:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def declare(self, schedules: Sequence[NewSchedule]) -> None:
        if schedules:
            await self._store.fetch("schedule_declare", *columns(schedules))

    async def save(self, schedule: NewSchedule) -> None:
        if schedule.origin is not Origin.STORED or not await self._store.fetch(
            "schedule_declare", *columns([schedule])
        ):
            raise InvalidInput(
                f"schedule {schedule.name!r} is declared in code; change it there, choose another name, or remove it "
                f"first if the code no longer has it"
            )

    async def remove(self, name: str) -> bool:
        return bool(await self._store.fetch("schedule_remove", name))

    async def list(self) -> "list[Schedule]":
        return [schedule(row) for row in await self._store.fetch("schedule_list")]

    async def now(self) -> datetime:
        (row,) = await self._store.fetch("now")
        now: datetime = row["now"]
        return now

    async def due(self, declared: Sequence[str]) -> DueSchedules:
        return due_schedules(await self._store.fetch("schedule_due", list(declared), True))

    async def advance(
        self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
    ) -> bool:
        (row,) = await self._store.fetch(
            "schedule_advance",
            schedule.name,
            schedule.next_occurrence,
            schedule.timetable,
            schedule.zone,
            schedule.run_now,
            next_occurrence,
            run.occurrence,
            run.replica,
            result,
            [job.id for job in jobs],
            [job.kind for job in jobs],
            [job.queue for job in jobs],
            [job.priority for job in jobs],
            [job.tenant for job in jobs],
            [job.correlation_id for job in jobs],
            [job.max_attempts for job in jobs],
            [job.payload for job in jobs],
            [job.headers for job in jobs],
        )
        won: bool = row["schedule_advance"]
        return won

    async def put_back(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        seen = (schedule.name, schedule.next_occurrence, schedule.timetable, schedule.zone)
        return bool(await self._store.fetch("schedule_put_back", *seen, next_occurrence))

    async def pause(self, name: str) -> bool:
        return bool(await self._store.fetch("schedule_pause", name))

    async def resume(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        seen = (schedule.name, schedule.timetable, schedule.zone)
        return bool(await self._store.fetch("schedule_resume", *seen, next_occurrence))

    async def run_now(self, name: str) -> bool:
        return bool(await self._store.fetch("schedule_run_now", name))

    @asynccontextmanager
    async def singleton(self, lock: str) -> AsyncIterator[PostgresSingleton | None]:
        (row,) = await self._store.fetch("lock_is_held", lock)
        if row["held"]:
            yield None
            return
        async with held_lock(self._store.open_connection, self._store.schema, lock) as singleton:
            yield singleton
