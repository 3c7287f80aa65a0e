"""Schedules and runs of the reference store: dictionaries behind one lock, on the clock of the job store."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json
from holdfast.store.memory.store import MemoryStore
from holdfast.store.schedules import DueSchedules, NewRun, NewSchedule, Origin, Run, Schedule


class MemoryRuns:
    def __init__(self, store: MemoryStore) -> None:
        self.lock = threading.RLock()
        self._clock = store.clock
        self._runs: dict[int, Run] = {}
        self._newest = 0

    async def start(self, run: NewRun) -> int:
        return self._add(run, self._clock.read(), None)

    async def finish(self, id: int, result: Json | None, error: Json | None) -> bool:
        with self.lock:
            run = self._runs.get(id)
            if run is None or run.finished_at is not None:
                return False
            self._runs[id] = replace(run, finished_at=self._clock.read(), result=result, error=error)
            return True

    async def record(self, run: NewRun, started_ago: timedelta, result: Json | None, error: Json | None) -> None:
        now = self._clock.read()
        self._add(run, now - started_ago, now, result, error)

    async def abandon(self, name: str, error: Json) -> int:
        with self.lock:
            unfinished = [run for run in self._runs.values() if run.name == name and run.finished_at is None]
            for run in unfinished:
                self._runs[run.id] = replace(run, finished_at=self._clock.read(), error=error)
            return len(unfinished)

    async def list(self, name: str | None, limit: int) -> "list[Run]":
        with self.lock:
            newest = sorted(self._runs.values(), key=lambda run: (run.started_at, run.id), reverse=True)
            return [run for run in newest if name in (None, run.name)][:limit]

    def _add(
        self,
        run: NewRun,
        started_at: datetime,
        finished_at: datetime | None,
        result: Json | None = None,
        error: Json | None = None,
    ) -> int:
        with self.lock:
            self._newest = id = self._newest + 1
            self._runs[id] = Run(id, run.name, run.replica, run.occurrence, started_at, finished_at, result, error)
            return id

    def remove_old(self, retention: timedelta) -> int:
        """Remove old runs, for maintenance."""
        with self.lock:
            before = self._clock.read() - retention
            old = [run.id for run in self._runs.values() if (run.finished_at or run.started_at) < before]
            for id in old:
                del self._runs[id]
            return len(old)


class MemorySchedules:
    def __init__(self, store: MemoryStore, runs: MemoryRuns) -> None:
        self._store = store
        self._runs = runs
        self._lock = runs.lock
        self._schedules: dict[str, Schedule] = {}
        self._held: set[str] = set()

    async def declare(self, schedules: Sequence[NewSchedule]) -> None:
        with self._lock:
            for new in schedules:
                kept = self._schedules.get(new.name)
                same = kept is not None and (kept.timetable, kept.zone) == (new.timetable, new.zone)
                self._schedules[new.name] = Schedule(
                    name=new.name,
                    timetable=new.timetable,
                    zone=new.zone,
                    missed=new.missed,
                    missed_limit=new.missed_limit,
                    job=new.job,
                    origin=new.origin,
                    next_occurrence=kept.next_occurrence if kept is not None and same else new.first_occurrence,
                    last_occurrence=kept.last_occurrence if kept else None,
                    paused=kept.paused if kept else False,
                    run_now=kept.run_now if kept else 0,
                )

    async def save(self, schedule: NewSchedule) -> None:
        with self._lock:
            kept = self._schedules.get(schedule.name)
            if Origin.CODE in (schedule.origin, kept and kept.origin):
                raise InvalidInput(
                    f"schedule {schedule.name!r} is declared in code; change it there, choose another name, or remove "
                    f"it first if the code no longer has it"
                )
            await self.declare([schedule])

    async def remove(self, name: str) -> bool:
        with self._lock:
            return self._schedules.pop(name, None) is not None

    async def list(self) -> "list[Schedule]":
        with self._lock:
            return sorted(self._schedules.values(), key=lambda schedule: schedule.name)

    async def now(self) -> datetime:
        return self._store.clock.read()

    async def due(self, declared: Sequence[str]) -> DueSchedules:
        with self._lock:
            stored = [each.name for each in self._schedules.values() if each.origin is Origin.STORED]
            return self.due_of({*declared, *stored})

    def due_of(self, names: set[str]) -> DueSchedules:
        with self._lock:
            now = self._store.clock.read()
            mine = [schedule for name, schedule in self._schedules.items() if name in names]
            due = [each for each in mine if each.run_now or (each.next_occurrence <= now and not each.paused)]
            coming = [each.next_occurrence - now for each in mine if each.next_occurrence > now and not each.paused]
            due.sort(key=lambda schedule: (schedule.next_occurrence, schedule.name))
            return DueSchedules(now, due, min(coming, default=None))

    async def advance(
        self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
    ) -> bool:
        with self._lock:
            kept = self._schedules.get(schedule.name)
            if (
                kept is None
                or kept.job is None
                or not _as_seen(kept, schedule)
                or kept.run_now < schedule.run_now
                or (kept.paused and not (schedule.run_now and next_occurrence == kept.next_occurrence))
            ):
                return False
            await self._store.enqueue(jobs)
            self._move(kept, schedule, next_occurrence, run.occurrence)
            await self._runs.record(run, timedelta(0), result, None)
            return True

    def done(self, schedule: Schedule, next_occurrence: datetime, occurrence: datetime | None) -> None:
        with self._lock:
            kept = self._schedules.get(schedule.name)
            if kept is not None:
                self._move(
                    kept, schedule, next_occurrence if _as_seen(kept, schedule) else kept.next_occurrence, occurrence
                )

    def _move(self, kept: Schedule, seen: Schedule, next_occurrence: datetime, occurrence: datetime | None) -> None:
        self._schedules[kept.name] = replace(
            kept,
            next_occurrence=next_occurrence,
            last_occurrence=occurrence or kept.last_occurrence,
            run_now=max(0, kept.run_now - seen.run_now),
        )

    async def put_back(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        with self._lock:
            kept = self._schedules.get(schedule.name)
            if kept is None or kept.paused or not _as_seen(kept, schedule):
                return False
            return self._change(kept.name, next_occurrence=next_occurrence)

    async def pause(self, name: str) -> bool:
        return self._change(name, paused=True)

    async def resume(self, schedule: Schedule, next_occurrence: datetime) -> bool:
        with self._lock:
            kept = self._schedules.get(schedule.name)
            if kept is None or (kept.timetable, kept.zone) != (schedule.timetable, schedule.zone):
                return False
            return self._change(kept.name, next_occurrence=next_occurrence if kept.paused else None, paused=False)

    async def run_now(self, name: str) -> bool:
        with self._lock:
            kept = self._schedules.get(name)
            return self._change(name, run_now=kept.run_now + 1 if kept else None)

    def _change(
        self,
        name: str,
        *,
        paused: bool | None = None,
        next_occurrence: datetime | None = None,
        run_now: int | None = None,
    ) -> bool:
        with self._lock:
            kept = self._schedules.get(name)
            if kept is None:
                return False
            self._schedules[name] = replace(
                kept,
                paused=kept.paused if paused is None else paused,
                next_occurrence=next_occurrence or kept.next_occurrence,
                run_now=kept.run_now if run_now is None else run_now,
            )
            return True

    @asynccontextmanager
    async def singleton(self, lock: str) -> "AsyncIterator[MemorySingleton | None]":
        with self._lock:
            taken = lock not in self._held
            if taken:
                self._held.add(lock)
        if not taken:
            yield None
            return
        singleton = MemorySingleton(self, self._runs, lambda: self._held.discard(lock))
        try:
            yield singleton
        finally:
            singleton.end()


class MemorySingleton:
    """Cannot be lost while its process lives."""

    def __init__(self, schedules: MemorySchedules, runs: MemoryRuns, give_back: Callable[[], None]) -> None:
        self._schedules = schedules
        self._runs = runs
        self._give_back = give_back
        self._ended = False

    async def due(self, name: str) -> DueSchedules:
        self._check()
        return self._schedules.due_of({name})

    async def done(
        self,
        schedule: Schedule,
        next_occurrence: datetime,
        occurrence: datetime | None,
        run: int,
        result: Json | None,
        error: Json | None,
    ) -> None:
        self._check()
        self._schedules.done(schedule, next_occurrence, occurrence)
        await self._runs.finish(run, result, error)
        self.end()

    async def lost(self) -> None:
        await asyncio.Event().wait()

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._give_back()

    def _check(self) -> None:
        if self._ended:
            raise StoreUnavailable("the lock is no longer held")


def _as_seen(kept: Schedule, seen: Schedule) -> bool:
    return (kept.next_occurrence, kept.timetable, kept.zone) == (seen.next_occurrence, seen.timetable, seen.zone)
