"""Up to when leases have ended, by a store's clock that may step forward.

An administrator sets it, or a virtual machine is resumed, and all leases look as if they had run out, also those that
are renewed. So a worker follows a step only after every worker has had the time to renew what it holds.
"""

from datetime import datetime, timedelta

from holdfast.log import get_logger

log = get_logger("holdfast.worker")

_TOLERANCE = 1 / 6
_PATIENCE = 2 / 3


class StoreTime:
    """One worker's view of it. A worker that starts after a step cannot know of it, and believes the clock."""

    def __init__(self, shortest_lease: float, longest_lease: float) -> None:
        """In seconds, of the leases that there may be."""
        self._tolerance = timedelta(seconds=shortest_lease * _TOLERANCE)
        self._patience = longest_lease * _PATIENCE
        self._moment: datetime | None = None
        self._at = 0.0
        self._stepped: float | None = None

    def ended_by(self, moment: datetime, asked: float, answered: float) -> datetime:
        """The latest end of a lease that is over, `moment` being the store's answer to what was asked just now."""
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
