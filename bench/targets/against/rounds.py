"""In which order everything is measured: a pair of each measure, then another one of each, until there are enough.

When the machine is slow for some minutes, each measure has a few slow pairs and none has only slow ones.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import asyncpg

from bench.targets.against.rows import NEW, OLD, Reading, Row
from bench.targets.measuring import say
from holdfast.domain.errors import HoldfastError

Values = Mapping[str, Sequence[float]]
"""Of each side that was measured, a value for each row."""
Take = Callable[[Sequence[str]], Awaitable[Values]]
"""Measures the sides, in the order in which they are given."""


@dataclass(slots=True)
class Measure:
    name: str
    rows: Sequence[Row]
    take: Take
    seconds: float
    """What one pair is expected to take on a quiet machine."""
    most_pairs: int | None = None
    most_old: int | None = None
    """So many readings of the old side are enough."""
    problem: str | None = None
    """Why it broke; it is not tried again then."""

    def wants(self, number: int) -> bool:
        return self.problem is None and (self.most_pairs is None or number < self.most_pairs)


@dataclass(slots=True)
class Pace:
    """Ends the rounds before `seconds` are over; None: no limit."""

    seconds: float | None = None
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _last: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def has_time_for(self, measure: Measure) -> bool:
        if self.seconds is None:
            return True
        return self.clock() - self._began + self._last.get(measure.name, 0.0) <= self.seconds

    def took(self, measure: Measure, seconds: float) -> None:
        self._last[measure.name] = seconds


async def take_rounds(
    measures: Sequence[Measure], pairs: int, pace: Pace, after_round: Callable[[], None] = lambda: None
) -> None:
    """Each side is first in every other pair: what one leaves behind favors neither."""
    for number in range(pairs):
        order = (NEW, OLD) if number % 2 == 0 else (OLD, NEW)
        for measure in measures:
            if not measure.wants(number):
                continue
            if not pace.has_time_for(measure):
                say(f"{number} of {pairs} pairs fit into the time")
                return
            began = pace.clock()
            try:
                await _take(measure, number, order)
            except (HoldfastError, asyncpg.PostgresError, OSError) as error:
                measure.problem = " ".join(f"{type(error).__name__}: {error}".split())
            pace.took(measure, pace.clock() - began)
            told = measure.problem or ", ".join(_told(row) for row in measure.rows)
            say(f"pair {number + 1} of {pairs}, {measure.name}: {told}")
        after_round()


async def _take(measure: Measure, number: int, order: Sequence[str]) -> None:
    is_enough = measure.most_old is not None and number >= measure.most_old
    sides = [NEW] if is_enough else order
    values = await measure.take(sides)
    for place, row in enumerate(measure.rows):
        old = values[OLD][place] if OLD in values else None
        row.readings.append(Reading(values[NEW][place], old, sides[0]))


def _told(row: Row) -> str:
    last = row.readings[-1]
    if last.old is None:
        return f"{last.new:,.1f} {row.unit}"
    return f"{last.new:,.1f} and {last.old:,.1f} {row.unit} ({row.ratios[-1]:.3f})"
