"""Who waits for what, and when to look at it. A watch is either on jobs by id or on keys that no job holds yet.

Neighbor: board.py, which has one watch of each type.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import UUID

from holdfast.domain.errors import HoldfastError
from holdfast.domain.job import Job
from holdfast.domain.keys import KeyName

NEVER = float("inf")
AT_ONCE = float("-inf")

Name = TypeVar("Name", UUID, KeyName)


@dataclass(frozen=True, slots=True)
class Pacing:
    """When to look without a ring, and how long to keep what may be needed again soon. All in seconds."""

    soon: tuple[float, ...] = (0.02, 0.1, 0.4)
    """The delays of the first looks after a wait was registered, because a finish in progress may not have seen it."""
    together: float = 0.01
    """Looks that are due within this time of each other are combined."""
    poll: float = 1.0
    sweep: float = 0.5
    """How often to remove the rows of waits that have ended."""
    forget: float = 60.0
    """How often to remove rows left behind by dead processes."""
    linger: float = 5.0
    """How long to keep the connection after the last wait."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One caller, the jobs it still waits for, and its deadline."""

    left: set[UUID]
    until: float
    done: "asyncio.Future[None]"
    key: KeyName | None = None
    """The key whose job the caller waits for, once there is one."""
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
class Watched:
    waiters: set[Waiter] = field(default_factory=set)
    until: float = AT_ONCE
    next_look: float = AT_ONCE
    looks: int = 0

    def look_at_once(self) -> None:
        self.next_look, self.looks = AT_ONCE, 0

    def look_later(self) -> None:
        """Look again at the next poll."""
        self.next_look = NEVER


class Watch(Generic[Name]):
    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        self._watched: dict[Name, Watched] = {}
        self._poll_at = AT_ONCE

    def __len__(self) -> int:
        return len(self._watched)

    def __contains__(self, name: object) -> bool:
        return name in self._watched

    def __iter__(self) -> Iterator[Name]:
        return iter(self._watched)

    def get(self, name: Name) -> Watched | None:
        return self._watched.get(name)

    def waiters(self, name: Name) -> set[Waiter]:
        """The waiters for this name. A copy, because they may leave while the caller iterates."""
        watched = self._watched.get(name)
        return set() if watched is None else set(watched.waiters)

    @property
    def all_waiters(self) -> set[Waiter]:
        return {waiter for watched in self._watched.values() for waiter in watched.waiters}

    def add(self, name: Name, waiter: Waiter) -> Watched:
        watched = self._watched.setdefault(name, Watched())
        watched.waiters.add(waiter)
        watched.until = max(watched.until, waiter.until)
        watched.look_at_once()
        return watched

    def leave(self, name: Name, waiter: Waiter) -> None:
        watched = self._watched.get(name)
        if watched is not None:
            watched.waiters.discard(waiter)
            if not watched.waiters:
                del self._watched[name]

    def look_at_all(self) -> None:
        for watched in self._watched.values():
            watched.look_at_once()

    def due(self, now: float) -> set[Name]:
        """Return what to look at now, and schedule the next look at each."""
        soon, by = self._pacing.soon, now + self._pacing.together
        due = {name: each for name, each in self._watched.items() if each.next_look <= by}
        for watched in due.values():
            watched.next_look = now + soon[watched.looks] if watched.looks < len(soon) else NEVER
            watched.looks += 1
        if now >= self._poll_at:
            self._poll_at = now + self._pacing.poll
            return set(self._watched)
        return set(due)

    def next_look(self) -> float:
        return min((self._poll_at, *(each.next_look for each in self._watched.values()))) if self._watched else NEVER
