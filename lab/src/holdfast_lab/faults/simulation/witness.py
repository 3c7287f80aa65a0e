"""What happened to a process and its leases, as seen from outside, and what that excuses.

The engine's promises in numbers: a lease is renewed after a third of it, a renewal without an answer within an eighth
is tried again, and an expired lease is rescued within two rescue intervals by any process that can reach the store.
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
"""Share of a lease between two looks of a lease keeper: the longest rest that the simulation gives it."""
_WAITS_AT_MOST = {"renew": 1 / 8, "connect": 1 / 3, "pause": math.inf}
"""What delays a lease keeper: its own requests, for at most this share of a lease each, and pauses, for any time."""
_REST = 1 / 10
"""Share of a lease that the keeper rests after a failed request, even one that failed because of a pause."""
_TRIP_SECONDS = 0.01
"""Longer than two undisturbed requests take."""
_LAST_WRITES_SECONDS = 0.5
"""A quarter of the least time that a stopping process takes to write its remaining outcomes."""


class Ending(StrEnum):
    """How a handler ended, from its own point of view."""

    RETURNED = "returned"
    RAISED = "raised"
    PERMANENT = "raised Permanent"
    SNOOZED = "raised Snooze"
    GAVE_UP = "raised Cancel"
    INTERRUPTED = "was interrupted"


class Cut(NamedTuple):
    """A failed or slow request, from the time it was sent until its end was known."""

    what: str
    since: float
    until: float


class Witness:
    """What is known about one process from outside: when it could not do its work."""

    def __init__(self, name: str, born_at: float, lease: float) -> None:
        self.name = name
        self.born_at = born_at
        self.lease = lease
        """Its longest lease; some kinds have shorter ones."""
        self.stops_at = math.inf
        """When it was asked to stop."""
        self.died_at = math.inf
        self.pauses: list[Span] = []
        """When the whole process was paused."""
        self.blocks: list[Span] = []
        """When a handler blocked the event loop; that does not affect the lease keeper, which has its own thread."""
        self.cuts: list[Cut] = []

    def could_not_turn(self, since: float, until: float) -> bool:
        return any(start <= until and end >= since for start, end in (*self.pauses, *self.blocks))

    def was_cut(self, what: str, at: float) -> bool:
        return any(cut.what == what and cut.since <= at <= cut.until for cut in self.cuts)

    def troubles(self, *whats: str) -> list[Span]:
        """Its pauses, its blocks, and the cuts of these requests, or of all requests if none is named."""
        cuts = [(cut.since, cut.until) for cut in self.cuts if not whats or cut.what in whats]
        return [*self.pauses, *self.blocks, *cuts]

    def was_undisturbed(self, seconds: float, after: float, until: float) -> bool:
        """Whether at some time from `after` to `until` it had served this long without any trouble."""
        end = min(until, self.stops_at, self.died_at)
        free_since = self.born_at
        for start, stop in (*sorted(self.troubles()), (end, end)):
            free_until = min(start, end)
            if free_until >= after and free_until - free_since >= seconds:
                return True
            free_since = max(free_since, stop)
        return False

    def troubles_of_keeper(self, lease: float, known_at: float) -> list[Span]:
        """When its lease keeper could not renew such a lease, if it waits and rests no longer than allowed.

        The limits depend on the shortest lease that it knows, and it knows this one only from `known_at` on.
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
    """One lease, according to the answers to its claim and renewals."""

    lease: Lease
    by: Witness
    since: float
    until: float
    heard_at: float = math.inf
    """When its process read the answer to the claim. It cannot renew the lease before."""
    claimed_at: float = field(init=False)
    """Unlike `since`, a renewal does not change it. It is not used to judge losses."""
    is_suspect: bool = False
    crash_limit: int = 0
    """The noted limit of a job that runs alone."""
    has_started: bool = False
    is_given_back: bool = False
    is_active: bool = False
    is_stubborn: bool = False
    ending: Ending | None = None
    result: object = None
    """The value that its handler returned."""

    def __post_init__(self) -> None:
        self.claimed_at = self.since


def is_explained(lost: Claimed) -> bool:
    """Whether its holder had enough trouble to lose this lease.

    Trouble counts from the time when a renewal was due. It must have lasted so long that no renewal fit in before
    the end: a single failed renewal, or a pause shorter than the rest of the lease, is not enough. A blocked event loop
    is not enough either, unless it kept the holder from reading in time that it has the lease.
    """
    by, lease = lost.by, lost.until - lost.since
    if by.died_at <= lost.until:
        return True
    claim = "claim of suspects" if lost.is_suspect else "claim"
    if lost.heard_at == math.inf and by.was_cut(claim, at=lost.since):
        # The process asks for such leases and releases them, but perhaps before its claim took effect.
        return True
    if seconds_of(by.troubles(), by.stops_at, lost.until) >= _LAST_WRITES_SECONDS:
        # Outcomes that it could not write in its last moments are left to a rescue.
        return True
    unread = seconds_of(by.troubles(claim), lost.since, min(lost.heard_at, lost.until))
    read_at = min(lost.heard_at, lost.since + unread + _TRIP_SECONDS)
    due_at = max(lost.since + lease * _RENEWED_AFTER, read_at)
    known_at = read_at + by.lease * _LOOK_EVERY
    seen_at = max(lost.since + lease * (_RENEWED_AFTER + _LOOK_EVERY), known_at)
    left = lost.until - seen_at - _TRIP_SECONDS
    return seconds_of(by.troubles_of_keeper(lease, known_at), due_at, lost.until) >= left


def seconds_of(spans: Iterable[Span], since: float, until: float) -> float:
    """How many seconds from `since` to `until` these spans cover together."""
    covered, end = 0.0, since
    for start, stop in sorted(spans):
        covered += max(0.0, min(stop, until) - max(start, end))
        end = max(end, min(stop, until))
    return covered
