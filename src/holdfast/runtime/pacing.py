"""How long to wait between two looks: soon after work, ever longer while there is none, with jitter."""

from dataclasses import dataclass
from datetime import timedelta
from random import Random

from holdfast.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Pacing:
    busy_delay: timedelta = timedelta(0)
    idle_min: timedelta = timedelta(milliseconds=20)
    idle_max: timedelta = timedelta(seconds=1)
    told_max: timedelta = timedelta(seconds=3)
    """The longest idle wait of who is told of new work; `idle_max` if that is longer."""
    idle_jitter: timedelta = timedelta(0)
    error_min: timedelta = timedelta(milliseconds=100)
    error_max: timedelta = timedelta(seconds=5)
    error_jitter: timedelta = timedelta(milliseconds=200)

    def __post_init__(self) -> None:
        if not timedelta(0) < self.idle_min <= self.idle_max:
            raise InvalidInput("idle_backoff_min: must be above zero and at most `poll`, the longest idle wait")
        if not timedelta(0) < self.error_min <= self.error_max:
            raise InvalidInput("error_backoff_min: must be above zero and at most error_backoff_max")

    def busy(self, random: Random) -> float:
        return (self.busy_delay + self.idle_jitter * random.random()).total_seconds() if self.busy_delay else 0.0

    def idle(self, times: int, random: Random, *, told_for: float | None = None) -> float:
        """The wait after the `times`-th look in a row that found nothing, from 1.

        `told_for`: for so many seconds we have been told of new work. What we were not told of was enqueued before that
        and is not committed yet, so there is no hurry.
        """
        if told_for is None:
            wait = _doubled(self.idle_min, self.idle_max, times)
        else:
            most = max(self.idle_max, self.told_max)
            wait = max(_doubled(self.idle_min, most, times), min(told_for, most.total_seconds()))
        return wait + self.idle_jitter.total_seconds() * random.random()

    def error(self, times: int, random: Random) -> float:
        """The wait after the `times`-th failure in a row, from 1."""
        return _doubled(self.error_min, self.error_max, times) + self.error_jitter.total_seconds() * random.random()


def _doubled(least: timedelta, most: timedelta, times: int) -> float:
    # Thirty doublings are years already; more would only make the number overflow.
    return min(most.total_seconds(), least.total_seconds() * float(2 ** min(times - 1, 30)))
