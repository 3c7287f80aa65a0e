"""Which of an app's schedules are due: one look at the store serves the job schedules and all inline runners.

A look is due at the next occurrence in the store, and at least every `look_every`, because other processes also save
and change schedules and ask for runs. Until there is a first schedule, looks are less frequent. Between looks,
everything is answered from memory.

A clock that is ahead moves schedules too far into the future. After it is set back, they would stand still for as long
as it was ahead, so every minute a board moves such schedules back.
"""

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from holdfast.logs.records import get_logger
from holdfast.scheduling.due import occurrence_in_place
from holdfast.scheduling.schedules import Declared
from holdfast.store.schedules import Schedule, ScheduleStore

log = get_logger("holdfast.schedules")

LOOK_EVERY = timedelta(seconds=1)

_LESS_OFTEN = 10
_PLACES_SECONDS = 60.0


class ScheduleBoard:
    """One per process. Whenever a process starts, it declares the app's schedules before its first look."""

    def __init__(
        self, schedules: ScheduleStore, declared: Sequence[Declared], look_every: timedelta = LOOK_EVERY
    ) -> None:
        self._schedules = schedules
        self._declared = list(declared)
        self._look_seconds = look_every.total_seconds()
        self._is_declared = False
        self._has_any = bool(self._declared)
        """Never reset, because a paused or removed schedule may return at any moment."""
        self._look_at = -math.inf
        self._check_places_at = -math.inf
        self._due: dict[str, Schedule] = {}
        self._with_job: set[str] = set()
        self._now = datetime.now(UTC)
        self._looked_at = time.monotonic()

    @property
    def look_seconds(self) -> float:
        return self._look_seconds

    def look_in(self) -> float:
        return max(0.0, self._look_at - time.monotonic())

    def look_soon(self) -> None:
        self._look_at = -math.inf

    async def look(self) -> None:
        """Ask the store what is due, if it is time for a look."""
        if self.look_in() > 0:
            return
        if not self._is_declared:
            await self._declare()
        found = await self._schedules.due([declared.name for declared in self._declared])
        self._now, self._looked_at = found.now, time.monotonic()
        self._due = {schedule.name: schedule for schedule in found.due}
        for schedule in found.due:
            (self._with_job.discard if schedule.job is None else self._with_job.add)(schedule.name)
        self._has_any = self._has_any or bool(found.due) or found.next_in is not None
        self._look_at = self._looked_at + self._look_seconds * (1 if self._has_any else _LESS_OFTEN)
        if found.next_in is not None:
            self.expect(found.now + found.next_in, found.now)
        if self._looked_at >= self._check_places_at:
            await self._check_places(found.now)
            self._check_places_at = self._looked_at + _PLACES_SECONDS

    async def _check_places(self, now: datetime) -> None:
        for schedule in await self._schedules.list():
            occurrence = occurrence_in_place(schedule, now)
            if occurrence != schedule.next_occurrence and await self._schedules.put_back(schedule, occurrence):
                self.expect(occurrence, now)
                log.warning(
                    "the clock was ahead: a schedule continues at an earlier occurrence",
                    schedule=schedule.name,
                    occurrence=occurrence.isoformat(),
                    instead_of=schedule.next_occurrence.isoformat(),
                )

    async def _declare(self) -> None:
        now = await self._schedules.now()
        await self._schedules.declare([declared.as_new(now) for declared in self._declared])
        self._is_declared = True

    @property
    def looked_at(self) -> datetime:
        """The store's clock at the last look."""
        return self._now

    def now(self) -> datetime:
        """The store's clock, estimated from the last look."""
        return self._now + timedelta(seconds=time.monotonic() - self._looked_at)

    def due_jobs(self) -> list[Schedule]:
        """The job schedules that are due, oldest occurrence first."""
        return [schedule for schedule in self._due.values() if schedule.job is not None]

    def is_due(self, name: str) -> bool:
        """Whether an inline runner is due."""
        return name in self._due and not self.has_job(name)

    def has_job(self, name: str) -> bool:
        """Whether a schedule was a job schedule when it was last due."""
        return name in self._with_job

    def settle(self, name: str) -> None:
        """Mark a schedule as handled until the next look."""
        self._due.pop(name, None)

    def expect(self, occurrence: datetime, now: datetime) -> None:
        """Look no later than at this occurrence; `now` is the store's clock."""
        self._look_at = min(self._look_at, time.monotonic() + (occurrence - now).total_seconds())
