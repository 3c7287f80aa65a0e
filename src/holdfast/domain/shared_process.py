"""What the workers and inline runners of a process must know about each other, so that a suspect can run alone in it.

While one worker has the process, the others start nothing. `worker/suspects.py` decides when and for how long. Turns of
a process are made one after the other, so nothing here changes during a check.
"""

import math
from typing import Protocol

_COURTESY_SECONDS = 0.1
"""The worker that had the process last leaves the others this much more time, or it would always be the first."""


class Member(Protocol):
    """A worker or an inline runner."""

    @property
    def is_quiet(self) -> bool:
        """Whether it runs no code of the application and holds no job that would be lost with the process."""

    def make_way(self) -> None:
        """Another member takes the process: give back what has not started."""

    def go_on(self) -> None:
        """The process is free again."""


class SharedProcess:
    """One instance per process, passed to all of its workers and inline runners when they are created.

    Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        """The longest handler timeout in the process: if nothing is started, its workers are quiet after that time."""
        self._members: list[Member] = []
        self._beginners: set[Member] = set()
        self._owner: Member | None = None
        self._last: Member | None = None
        self._left = self._rests_until = -math.inf

    def join(self, member: Member, longest: float = 0.0) -> None:
        self._members.append(member)
        self.longest = max(self.longest, longest)

    def expect(self, worker: Member) -> None:
        """The worker will begin with suspects; until then, no inline runner begins."""
        self._beginners.add(worker)

    def has_begun(self, worker: Member) -> None:
        """The worker has had a first turn, even if that failed."""
        if self._beginners and not self.is_taken_from(worker):
            self._beginners.discard(worker)

    @property
    def is_beginning(self) -> bool:
        return bool(self._beginners)

    def is_taken_from(self, member: Member) -> bool:
        """Whether another member has the process, so that this one must not start anything."""
        return self._owner is not None and self._owner is not member

    def is_quiet_around(self, member: Member) -> bool:
        return all(each.is_quiet for each in self._members if each is not member)

    def free_in(self, member: Member, now: float, *, nothing_else: bool) -> float:
        """Seconds until the member may take the process. `nothing_else`: it has no other work to do meanwhile."""
        is_again = self._last is member and len(self._members) > 1
        since = self._left if nothing_else and self.is_quiet_around(member) else self._rests_until
        return max(0.0, since + (_COURTESY_SECONDS if is_again else 0.0) - now)

    def take(self, member: Member) -> None:
        self._owner = self._last = member
        for each in self._members:
            if each is not member:
                each.make_way()

    def leave(self, now: float, rest: float) -> None:
        """The others go on. `rest` is for how long other work has its turn."""
        owner, self._owner = self._owner, None
        self._left, self._rests_until = now, now + rest
        for each in self._members:
            if each is not owner:
                each.go_on()
