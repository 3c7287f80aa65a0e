"""Decides which leases have expired by the store's clock, which may step forward.

After an administrator sets the clock or a virtual machine resumes, all leases look expired, even those that are being
renewed. So for each lease a worker goes on with the time before the step until its holder has had time to renew it.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.domain.claim import LONGEST_LENGTH
from holdfast.domain.limits import SHORTEST_LEASE
from holdfast.logs.records import get_logger
from holdfast.store.contract import Ended

log = get_logger("holdfast.worker")

_TOLERANCE = SHORTEST_LEASE / 6
"""A step that is no longer than this does not end a lease that is being renewed."""
_PATIENCE = 2 / 3


class _Reading(NamedTuple):
    """The store's time, and when we asked for it."""

    moment: datetime
    asked: float

    def at_most(self, now: float) -> datetime:
        """The latest time that the clock shows now if it has not stepped."""
        return self.moment + timedelta(seconds=now - self.asked) + _TOLERANCE


class StoreTime:
    """One worker's view of the store's clock. A worker that starts after a step cannot see it and trusts the clock."""

    def __init__(self) -> None:
        self._last: _Reading | None = None
        self._before: _Reading | None = None
        """The last reading before a step, until the longest lease follows the step."""
        self._stepped = 0.0

    def ended(self, moment: datetime, asked: float, answered: float) -> list[Ended]:
        """Return which leases count as expired. `moment` is the store's time; the other two are ours."""
        last, self._last = self._last, _Reading(moment, asked)
        if last is not None and moment > last.at_most(answered):
            step = moment - last.at_most(answered)
            log.warning("the store's clock has stepped forward", seconds=step.total_seconds())
            # After a second step, leases wait longer than they have to, by the time before the first.
            self._before, self._stepped = self._before or last, asked
        followed_by = min(timedelta(seconds=(asked - self._stepped) / _PATIENCE), LONGEST_LENGTH)
        before = self._before
        if before is None or moment <= before.at_most(answered) or followed_by == LONGEST_LENGTH:
            self._before = None
            return [Ended(moment + _TOLERANCE)]
        return [Ended(before.at_most(answered)), Ended(moment + _TOLERANCE, followed_by)]
