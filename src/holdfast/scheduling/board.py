"""What is due among an app's schedules: one look at the store serves the job schedules and all inline runners.

A look is due at the next occurrence in the store, and at least every `look_every`, because schedules are also saved,
changed and asked to run now by other processes. While there are none, only the first one can come, and it is looked for
less often. Between looks, everything is answered from memory.
"""

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from holdfast.scheduling.schedules import Declared
from holdfast.store.schedules import Schedule, ScheduleStore

LOOK_EVERY = timedelta(seconds=1)

_LESS_OFTEN = 10


class ScheduleBoard:
    """One per process. Declares the app's schedules before its first look, at every start of the process."""

    def __init__(
        self, schedules: ScheduleStore, declared: Sequence[Declared], look_every: timedelta = LOOK_EVERY
    ) -> None:
        self._schedules = schedules
        self._declared = list(declared)
        self._look_seconds = look_every.total_seconds()
        self._is_declared = False
        self._has_any = bool(self._declared)
        """Stays: one that was paused or removed may be back any moment."""
        self._look_at = -math.inf
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
        """Ask the store, if a look is due."""
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

    async def _declare(self) -> None:
        now = await self._schedules.now()
        await self._schedules.declare([declared.as_new(now) for declared in self._declared])
        self._is_declared = True

    @property
    def looked_at(self) -> datetime:
        """The store's clock at the last look."""
        return self._now

    def now(self) -> datetime:
        """The store's clock as far as memory can tell."""
        return self._now + timedelta(seconds=time.monotonic() - self._looked_at)

    def due_jobs(self) -> list[Schedule]:
        """Job schedules that are due, oldest occurrence first."""
        return [schedule for schedule in self._due.values() if schedule.job is not None]

    def is_due(self, name: str) -> bool:
        """Whether an inline runner is due."""
        return name in self._due and not self.has_job(name)

    def has_job(self, name: str) -> bool:
        """Whether a schedule is a job schedule, as far as it was ever due."""
        return name in self._with_job

    def settle(self, name: str) -> None:
        """Somebody has seen to it; the next look tells if there is more."""
        self._due.pop(name, None)

    def expect(self, occurrence: datetime, now: datetime) -> None:
        """Look no later than at this occurrence, the store's clock being `now`."""
        self._look_at = min(self._look_at, time.monotonic() + (occurrence - now).total_seconds())
