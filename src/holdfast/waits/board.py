"""Tracks waiters, the jobs and keys to look at now, and the waiter rows to write. It has no store, clock or task.

Neighbors: watch.py decides when each look is due; waits.py asks the board what to do and reports the results.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from uuid import UUID

from holdfast.domain.errors import UnknownJob
from holdfast.domain.job import Job
from holdfast.domain.keys import KeyName
from holdfast.waits.watch import AT_ONCE, Pacing, Waiter, Watch

_ROUNDING = 0.001


class Board:
    def __init__(self, pacing: Pacing) -> None:
        self._watched = Watch[UUID](pacing)
        self._sought = Watch[KeyName](pacing)
        """Keys for which no job has been found yet."""
        self._heard: set[UUID] = set()
        self._asking: set[Waiter] = set()
        self._too_late: set[Waiter] = set()
        """Waiters that arrived after the current look was sent."""
        self._rows: dict[UUID, float] = {}
        """When each row that was written and not yet removed expires."""
        self._unwritten: set[UUID] = set()

    @property
    def is_empty(self) -> bool:
        return not self._watched and not self._sought

    @property
    def waiters(self) -> set[Waiter]:
        return self._watched.all_waiters | self._sought.all_waiters

    def add(self, waiter: Waiter) -> None:
        self._too_late.add(waiter)
        if waiter.key is not None:
            self._sought.add(waiter.key, waiter)
        for id in waiter.left:
            self._watch(id, waiter)

    def _watch(self, id: UUID, waiter: Waiter) -> None:
        watched = self._watched.add(id, waiter)
        if watched.until > self._rows.get(id, AT_ONCE) + _ROUNDING:
            self._unwritten.add(id)

    def take_any(self, waiter: Waiter) -> None:
        """The waiter's time is up: the next look returns its jobs in any state."""
        waiter.takes_any = True
        self._asking.add(waiter)

    def remove(self, waiter: Waiter) -> None:
        self._asking.discard(waiter)
        self._too_late.discard(waiter)
        if waiter.key is not None:
            self._sought.leave(waiter.key, waiter)
        for id in waiter.left:
            self._leave(id, waiter)

    def _leave(self, id: UUID, waiter: Waiter) -> None:
        self._watched.leave(id, waiter)
        if id not in self._watched:
            self._unwritten.discard(id)

    def hear(self, ids: Collection[UUID]) -> None:
        self._heard.update(id for id in ids if id in self._watched)

    def look_at_all(self) -> None:
        self._watched.look_at_all()
        self._sought.look_at_all()

    def to_seek(self, now: float) -> set[KeyName]:
        """Keys that are due for a look."""
        asked = {waiter.key for waiter in self._asking if waiter.key is not None and waiter.key in self._sought}
        return self._sought.due(now) | asked

    def sought(self, asked: Iterable[KeyName], ids: Mapping[KeyName, UUID]) -> None:
        """Record which jobs hold these keys. From now on, the waiters wait for those jobs."""
        for key in asked:
            id = ids.get(key)
            for waiter in self._sought.waiters(key) - self._too_late:
                if id is not None:
                    self._sought.leave(key, waiter)
                    waiter.left = {id}
                    self._watch(id, waiter)
                elif waiter.takes_any:
                    waiter.end(UnknownJob(f"no job has the key {key}"))
                    self.remove(waiter)

    def to_read(self) -> set[UUID]:
        """Jobs that are reported to be final, and jobs whose waiters accept any state."""
        heard, self._heard = self._heard, set()
        return heard.union(*(waiter.left for waiter in self._asking))

    def to_check(self, now: float) -> set[UUID]:
        """Jobs that are due for a check whether they are final."""
        return self._watched.due(now)

    def next_look(self) -> float:
        return min(self._watched.next_look(), self._sought.next_look())

    def sent(self) -> None:
        """A look has been sent. Its result may be out of date for waiters that arrive from now on."""
        self._too_late.clear()

    def tell(self, asked: Iterable[UUID], jobs: Mapping[UUID, Job]) -> None:
        """Give the result of a look to the waiters that were there when it was sent.

        A waiter that has all of its jobs is off the board before its task runs.
        """
        for id in asked:
            job = jobs.get(id)
            for waiter in self._watched.waiters(id) - self._too_late:
                if job is None:
                    self._lost(id, waiter)
                elif job.state.is_final or waiter.takes_any:
                    waiter.take(job)
                    self._leave(id, waiter)

    def _lost(self, id: UUID, waiter: Waiter) -> None:
        """The job does not exist. A waiter for a key now waits for the key's next job."""
        if waiter.key is not None and not waiter.takes_any:
            self._leave(id, waiter)
            waiter.left = set()
            self._sought.add(waiter.key, waiter).look_later()
            return
        unknown = f"no job has the id {id}; it is not committed yet, or was removed"
        waiter.end(UnknownJob(unknown if waiter.key is None else f"no job has the key {waiter.key}"))
        self.remove(waiter)

    def rows_to_write(self, now: float) -> dict[UUID, timedelta]:
        """Jobs whose waits last longer than their registered rows, and the remaining time of each."""
        found = ((id, self._watched.get(id)) for id in self._unwritten)
        ends = {id: watched.until for id, watched in found if watched is not None}
        return {id: timedelta(seconds=end - now) for id, end in ends.items() if end > now + _ROUNDING}

    def rows_written(self, rows: Mapping[UUID, timedelta], now: float) -> None:
        for id, lasting in rows.items():
            self._rows[id] = now + lasting.total_seconds()
            watched = self._watched.get(id)
            if watched is not None:
                # A job that became final before the row existed has not rung for it.
                watched.look_at_once()
                if watched.until <= self._rows[id] + _ROUNDING:
                    self._unwritten.discard(id)

    def rows_in_doubt(self) -> None:
        """The rows may be gone, for example after a server crash. If they still exist, they must be removed later."""
        self._rows = dict.fromkeys(self._rows, AT_ONCE)
        self._unwritten = set(self._watched)

    @property
    def rows(self) -> set[UUID]:
        return set(self._rows)

    def rows_to_remove(self) -> set[UUID]:
        return self._rows.keys() - set(self._watched)

    def rows_removed(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            del self._rows[id]
            if id in self._watched:
                self._unwritten.add(id)
