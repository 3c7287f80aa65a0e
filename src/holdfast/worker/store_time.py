"""Decides which leases have expired by the store's clock, which may step forward.

After an administrator sets the clock or a virtual machine resumes, all leases look expired, even those that are being
renewed. So a worker follows a step only after every worker has had time to renew its leases.
"""

from datetime import datetime, timedelta

from holdfast.logs.records import get_logger

log = get_logger("holdfast.worker")

_TOLERANCE = 1 / 6
_PATIENCE = 2 / 3


class StoreTime:
    """One worker's view of the store's clock. A worker that starts after a step cannot see it and trusts the clock."""

    def __init__(self, shortest_lease: float, longest_lease: float) -> None:
        """The shortest and longest lease in use, in seconds."""
        self._tolerance = timedelta(seconds=shortest_lease * _TOLERANCE)
        self._patience = longest_lease * _PATIENCE
        self._moment: datetime | None = None
        self._at = 0.0
        self._stepped: float | None = None

    def ended_by(self, moment: datetime, asked: float, answered: float) -> datetime:
        """The latest lease end that counts as expired. `moment` is the store's time; the other two are ours."""
        if self._moment is not None:
            latest = self._moment + timedelta(seconds=answered - self._at) + self._tolerance
            if moment <= latest:
                self._stepped = None
            elif self._stepped is None or asked < self._stepped + self._patience:
                if self._stepped is None:
                    self._stepped = asked
                    log.warning("the store's clock has stepped forward", seconds=(moment - latest).total_seconds())
                return latest
        self._moment, self._at, self._stepped = moment, asked, None
        return moment + self._tolerance
