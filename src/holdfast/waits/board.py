"""Who waits for which job, which jobs to look at now, and whose rows to write. No store, no clock, no task.

Neighbours: waits.py asks it what to do and tells it what was found.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from holdfast.domain.errors import HoldfastError, UnknownJob
from holdfast.domain.job import Job

NEVER = float("inf")
_AT_ONCE = float("-inf")
_ROUNDING = 0.001


@dataclass(frozen=True, slots=True)
class Pacing:
    """When to look without a ring, in seconds; and how long to keep what others may need soon."""

    soon: tuple[float, ...] = (0.02, 0.1, 0.4)
    """After a wait was registered, and then one after another: a finish that was under way did not see it."""
    together: float = 0.01
    """Looks that are due within this time of each other are one."""
    poll: float = 1.0
    sweep: float = 0.5
    """How often the rows of waits that ended are removed."""
    forget: float = 60.0
    """How often the rows that dead processes left are removed."""
    linger: float = 5.0
    """How long the connection is kept after the last wait."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One caller, the jobs that it still waits for, and until when."""

    left: set[UUID]
    until: float
    done: "asyncio.Future[None]"
    found: dict[UUID, Job] = field(default_factory=dict)
    error: HoldfastError | None = None
    takes_any: bool = False

    def take(self, job: Job) -> None:
        self.found[job.id] = job
        self.left.discard(job.id)
        if not self.left:
            self.end()

    def end(self, error: HoldfastError | None = None) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(None)


@dataclass(slots=True)
class _Watched:
    waiters: set[Waiter] = field(default_factory=set)
    until: float = _AT_ONCE
    next_look: float = _AT_ONCE
    looks: int = 0

    def look_at_once(self) -> None:
        self.next_look, self.looks = _AT_ONCE, 0


class Board:
    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        self._watched: dict[UUID, _Watched] = {}
        self._heard: set[UUID] = set()
        self._asking: set[Waiter] = set()
        self._too_late: set[Waiter] = set()
        """Who came after the look that is under way was sent."""
        self._rows: dict[UUID, float] = {}
        """Until when each row counts that was written and not removed."""
        self._unwritten: set[UUID] = set()
        self._poll_at = _AT_ONCE

    @property
    def is_empty(self) -> bool:
        return not self._watched

    @property
    def waiters(self) -> set[Waiter]:
        return {waiter for watched in self._watched.values() for waiter in watched.waiters}

    def add(self, waiter: Waiter) -> None:
        self._too_late.add(waiter)
        for id in waiter.left:
            watched = self._watched.setdefault(id, _Watched())
            watched.waiters.add(waiter)
            watched.until = max(watched.until, waiter.until)
            watched.look_at_once()
            if watched.until > self._rows.get(id, _AT_ONCE) + _ROUNDING:
                self._unwritten.add(id)

    def take_any(self, waiter: Waiter) -> None:
        """Its time is up: the next look gives it what it waits for in any state."""
        waiter.takes_any = True
        self._asking.add(waiter)

    def remove(self, waiter: Waiter) -> None:
        self._asking.discard(waiter)
        self._too_late.discard(waiter)
        for id in waiter.left:
            self._leave(id, waiter)

    def _leave(self, id: UUID, waiter: Waiter) -> None:
        watched = self._watched.get(id)
        if watched is not None:
            watched.waiters.discard(waiter)
            if not watched.waiters:
                del self._watched[id]
                self._unwritten.discard(id)

    def hear(self, ids: Collection[UUID]) -> None:
        self._heard.update(id for id in ids if id in self._watched)

    def look_at_all(self) -> None:
        for watched in self._watched.values():
            watched.look_at_once()

    def to_read(self) -> set[UUID]:
        """Jobs that became final, as was heard, and those whose waiters take them in any state."""
        heard, self._heard = self._heard, set()
        return heard.union(*(waiter.left for waiter in self._asking))

    def to_check(self, now: float) -> set[UUID]:
        """Jobs of which it is time to ask whether they are final; the next time is set."""
        soon, by = self._pacing.soon, now + self._pacing.together
        due = {id: each for id, each in self._watched.items() if each.next_look <= by}
        for watched in due.values():
            watched.next_look = now + soon[watched.looks] if watched.looks < len(soon) else NEVER
            watched.looks += 1
        if now >= self._poll_at:
            self._poll_at = now + self._pacing.poll
            return set(self._watched)
        return set(due)

    def next_check(self) -> float:
        return min((self._poll_at, *(each.next_look for each in self._watched.values()))) if self._watched else NEVER

    def sent(self) -> None:
        """The jobs are being read: what is found may be old news to whoever comes from now on."""
        self._too_late.clear()

    def tell(self, asked: Iterable[UUID], jobs: Mapping[UUID, Job]) -> None:
        """What was found of these jobs, for those who were there when the look was sent.

        Who has everything is off the board before its task has run.
        """
        for id in asked:
            job = jobs.get(id)
            for waiter in self._watched[id].waiters - self._too_late if id in self._watched else ():
                if job is None:
                    waiter.end(UnknownJob(f"no job has the id {id}, or it was removed by retention"))
                    self.remove(waiter)
                elif job.state.is_final or waiter.takes_any:
                    waiter.take(job)
                    self._leave(id, waiter)

    def rows_to_write(self, now: float) -> dict[UUID, timedelta]:
        """For how long each job is waited for that is not registered for so long."""
        ends = {id: self._watched[id].until for id in self._unwritten if id in self._watched}
        return {id: timedelta(seconds=end - now) for id, end in ends.items() if end > now + _ROUNDING}

    def rows_written(self, rows: Mapping[UUID, timedelta], now: float) -> None:
        for id, lasting in rows.items():
            self._rows[id] = now + lasting.total_seconds()
            watched = self._watched.get(id)
            if watched is not None:
                # Whatever became final before the row was there has rung for nobody.
                watched.look_at_once()
                if watched.until <= self._rows[id] + _ROUNDING:
                    self._unwritten.discard(id)

    def rows_in_doubt(self) -> None:
        """They may be gone, as after a crash of the server; or they are there, and then they must still be removed."""
        self._rows = dict.fromkeys(self._rows, _AT_ONCE)
        self._unwritten = set(self._watched)

    @property
    def rows(self) -> set[UUID]:
        return set(self._rows)

    def rows_to_remove(self) -> set[UUID]:
        return self._rows.keys() - self._watched.keys()

    def rows_removed(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            del self._rows[id]
            if id in self._watched:
                self._unwritten.add(id)
