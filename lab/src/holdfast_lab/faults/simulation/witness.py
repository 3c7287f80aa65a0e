"""What befell a process and its leases, as seen from outside, and what of it excuses whom.

The engine's promises in numbers: a lease is renewed after a third of it, a renewal that is not answered within an
eighth is tried again, and an expired lease is rescued within two rescue intervals by whoever can reach the store.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.domain.job import Lease

Span = tuple[float, float]

_RENEWED_AFTER = 1 / 3
_LOOK_EVERY = 1 / 6
"""Of a lease, between two looks of a lease keeper: as long as the simulation lets it rest at most."""
_WAITS_AT_MOST = {"renew": 1 / 8, "connect": 1 / 3, "pause": math.inf}
"""What holds a lease keeper up: its own requests, for such a share of a lease at most, and pauses for as long."""
_REST = 1 / 10
"""Of a lease, after a request of the keeper that failed, be it by a pause."""
_TRIP_SECONDS = 0.01
"""More than two requests take that nothing befalls."""
_LAST_WRITES_SECONDS = 0.5
"""A quarter of the time that a process which stops takes at least for writing what it has left."""


class Ending(StrEnum):
    """How a handler ended, as it knows itself."""

    RETURNED = "returned"
    RAISED = "raised"
    PERMANENT = "raised Permanent"
    SNOOZED = "raised Snooze"
    GAVE_UP = "raised Cancel"
    INTERRUPTED = "was interrupted"


class Cut(NamedTuple):
    """A request that failed or was slow, from when it was sent until its end was known."""

    what: str
    since: float
    until: float


class Witness:
    """What is known from outside about one process: when it could not do its duty."""

    def __init__(self, name: str, born_at: float, lease: float) -> None:
        self.name = name
        self.born_at = born_at
        self.lease = lease
        """The longest that it has; some kinds have shorter ones."""
        self.stops_at = math.inf
        """When it was asked to stop."""
        self.died_at = math.inf
        self.pauses: list[Span] = []
        """The whole process stood still."""
        self.blocks: list[Span] = []
        """A handler blocked its event loop; the lease keeper has a thread of its own."""
        self.cuts: list[Cut] = []

    def could_not_turn(self, since: float, until: float) -> bool:
        return any(start <= until and end >= since for start, end in (*self.pauses, *self.blocks))

    def was_cut(self, what: str, at: float) -> bool:
        return any(cut.what == what and cut.since <= at <= cut.until for cut in self.cuts)

    def troubles(self, *whats: str) -> list[Span]:
        """All of them, or those of its event loop and of these requests."""
        cuts = [(cut.since, cut.until) for cut in self.cuts if not whats or cut.what in whats]
        return [*self.pauses, *self.blocks, *cuts]

    def was_undisturbed(self, seconds: float, after: float, until: float) -> bool:
        """Whether it had served for so long without any trouble at some time from `after` to `until`."""
        end = min(until, self.stops_at, self.died_at)
        free_since = self.born_at
        for start, stop in (*sorted(self.troubles()), (end, end)):
            free_until = min(start, end)
            if free_until >= after and free_until - free_since >= seconds:
                return True
            free_since = max(free_since, stop)
        return False

    def troubles_of_keeper(self, lease: float, known_at: float) -> list[Span]:
        """When its lease keeper could not renew such a lease, if it waits and rests no longer than it may.

        That goes by the shortest lease that it knows of, and of this one it knows only from `known_at` on.
        """
        troubles = []
        for what, since, until in (*(Cut("pause", *pause) for pause in self.pauses), *self.cuts):
            if what in _WAITS_AT_MOST:
                shortest = lease if since >= known_at else self.lease
                end = min(until, since + shortest * _WAITS_AT_MOST[what])
                troubles.append((since, end + shortest * _REST + _TRIP_SECONDS))
        return troubles


@dataclass(slots=True)
class Claimed:
    """One lease, as its claim and its renewals were answered."""

    lease: Lease
    by: Witness
    since: float
    until: float
    heard_at: float = math.inf
    """When its process read the answer to the claim: only from then on can it keep the lease."""
    claimed_at: float = field(init=False)
    """Unlike `since` it stays when the lease is renewed. No loss is judged by it."""
    is_suspect: bool = False
    crash_limit: int = 0
    """Of one that runs alone, as it was noted."""
    has_started: bool = False
    is_active: bool = False
    is_stubborn: bool = False
    ending: Ending | None = None
    result: object = None
    """What its handler returned."""

    def __post_init__(self) -> None:
        self.claimed_at = self.since


def is_explained(lost: Claimed) -> bool:
    """Whether enough happened to its holder to cost this lease.

    What befell it counts from the time on at which the lease was to be renewed. It must have lasted so long that no
    renewal fitted in before the end: a single one that failed, or a pause shorter than what was left, costs no lease.
    A blocked event loop does not either, unless it kept the holder from reading in time that it has the lease.
    """
    by, lease = lost.by, lost.until - lost.since
    if by.died_at <= lost.until:
        return True
    claim = "claim of suspects" if lost.is_suspect else "claim"
    if lost.heard_at == math.inf and by.was_cut(claim, at=lost.since):
        # It asks for such leases and gives them back, but not before a claim that takes effect late.
        return True
    if seconds_of(by.troubles(), by.stops_at, lost.until) >= _LAST_WRITES_SECONDS:
        # What it could not write in its last moments is left to the rescue.
        return True
    unread = seconds_of(by.troubles(claim), lost.since, min(lost.heard_at, lost.until))
    read_at = min(lost.heard_at, lost.since + unread + _TRIP_SECONDS)
    due_at = max(lost.since + lease * _RENEWED_AFTER, read_at)
    known_at = read_at + by.lease * _LOOK_EVERY
    seen_at = max(lost.since + lease * (_RENEWED_AFTER + _LOOK_EVERY), known_at)
    left = lost.until - seen_at - _TRIP_SECONDS
    return seconds_of(by.troubles_of_keeper(lease, known_at), due_at, lost.until) >= left


def seconds_of(spans: Iterable[Span], since: float, until: float) -> float:
    """How much of the time they cover together."""
    covered, end = 0.0, since
    for start, stop in sorted(spans):
        covered += max(0.0, min(stop, until) - max(start, end))
        end = max(end, min(stop, until))
    return covered
