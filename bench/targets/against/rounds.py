"""The order of all measurements: a pair of each measure, then another pair of each, until there are enough.

If the machine is slow for some minutes, each measure has a few slow pairs, but none has only slow ones.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import asyncpg

from bench.targets.against.rows import NEW, OLD, Reading, Row
from bench.targets.measuring import say
from holdfast.domain.errors import HoldfastError

Values = Mapping[str, Sequence[float]]
"""For each measured side, one value per row."""
Take = Callable[[Sequence[str]], Awaitable[Values]]
"""Measures the sides in the given order."""


@dataclass(slots=True)
class Measure:
    name: str
    rows: Sequence[Row]
    take: Take
    seconds: float
    """The expected seconds per pair on a quiet machine."""
    most_pairs: int | None = None
    most_old: int | None = None
    """The most readings that the old side needs."""
    problem: str | None = None
    """Why it broke. A broken measure is not tried again."""

    def wants(self, number: int) -> bool:
        return self.problem is None and (self.most_pairs is None or number < self.most_pairs)


@dataclass(slots=True)
class Pace:
    """Ends the rounds before `seconds` have passed; None means no limit."""

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
    """Take pairs of every measure. Each side goes first in every other pair, so that leftovers favor neither."""
    for number in range(pairs):
        order = (NEW, OLD) if number % 2 == 0 else (OLD, NEW)
        for measure in measures:
            if not measure.wants(number):
                continue
            if not pace.has_time_for(measure):
                say(f"{number} of {pairs} pairs fit into the time limit")
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
