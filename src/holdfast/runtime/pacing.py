"""How long to wait between looks: briefly after work, increasingly long while there is none, with jitter."""

from dataclasses import dataclass
from datetime import timedelta
from random import Random

from holdfast.domain.errors import InvalidInput
from holdfast.wake import Told

_LOOKS = 8


@dataclass(frozen=True, slots=True)
class Pacing:
    busy_delay: timedelta = timedelta(0)
    idle_min: timedelta = timedelta(milliseconds=20)
    idle_max: timedelta = timedelta(seconds=1)
    told_max: timedelta = timedelta(seconds=3)
    """The longest idle wait of a worker that is notified of new work; `idle_max` if that is longer."""
    crowd_max: timedelta = timedelta(seconds=10)
    """The same for a worker among many that can take the same jobs; `told_max` if that is longer."""
    idle_jitter: timedelta = timedelta(0)
    error_min: timedelta = timedelta(milliseconds=100)
    error_max: timedelta = timedelta(seconds=5)
    error_jitter: timedelta = timedelta(milliseconds=200)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.idle_min <= self.idle_max:
            raise InvalidInput("idle_backoff_min: must be above zero and no more than `poll`, the longest idle wait")
        if not timedelta(0) < self.error_min <= self.error_max:
            raise InvalidInput("error_backoff_min: must be above zero and no more than error_backoff_max")

    def busy(self, random: Random) -> float:
        return (self.busy_delay + self.idle_jitter * random.random()).total_seconds() if self.busy_delay else 0.0

    def idle(self, times: int, random: Random, *, told: Told | None = None) -> float:
        """The wait after the `times`-th look in a row that found nothing, counted from 1.

        Jobs that no ring announces were enqueued before producers knew of us and are not committed yet. The longer ago
        that was, the less urgent the next look is.
        """
        if told is None:
            wait = _doubled(self.idle_min, self.idle_max, times)
        else:
            longest = self._told_max(told.others, random)
            wait = max(_doubled(self.idle_min, longest, times), min(told.seconds, longest.total_seconds()))
        return wait + self.idle_jitter.total_seconds() * random.random()

    def _told_max(self, others: int, random: Random) -> timedelta:
        """Many workers share the looks. Together they look at least eight times per `idle_max`, at random intervals."""
        alone = max(self.idle_max, self.told_max)
        share = self.idle_max * (others + 1) / _LOOKS
        if share <= alone:
            return alone
        return max(alone, min(share, self.crowd_max) * (1 - random.random() / 4))

    def error(self, times: int, random: Random) -> float:
        """The wait after the `times`-th failure in a row, counted from 1."""
        return _doubled(self.error_min, self.error_max, times) + self.error_jitter.total_seconds() * random.random()


def _doubled(least: timedelta, most: timedelta, times: int) -> float:
    # Thirty doublings already make years; more would only overflow.
    return min(most.total_seconds(), least.total_seconds() * float(2 ** min(times - 1, 30)))
