"""What paired readings show: the median, its exact interval, and whether a threshold is met, missed or unclear."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

CONFIDENCE = 0.95
SLACK = 0.03
"""How far the lower bound may be below the least median: 0.98 requires at least 0.95."""


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median between two order statistics, which need no assumption about the distribution."""

    median: float
    low: float
    high: float
    is_certain: bool
    """Whether low and high enclose the true median with 95% confidence. That takes at least six values."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        ordered = sorted(values)
        rank = _rank(len(ordered))
        outer = max(rank, 1)
        return cls(statistics.median(ordered), ordered[outer - 1], ordered[-outer], is_certain=rank > 0)


def _rank(number: int) -> int:
    """The largest rank at which the values from below and above enclose the median; 0 if there is none.

    The number of values below the true median is distributed like the heads of coin tosses.
    """
    rank, outside = 0, 0.0
    while True:
        outside += 2 * math.comb(number, rank) / 2**number
        if outside > 1 - CONFIDENCE:
            return rank
        rank += 1


class Threshold(Protocol):
    def verdict(self, estimate: Estimate) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class RatioAtLeast:
    """A lower bound for the ratio new/old, where more is better."""

    least: float

    def verdict(self, estimate: Estimate) -> Verdict:
        if not estimate.is_certain:
            return Verdict.UNCLEAR
        if estimate.median >= self.least and estimate.low >= self.least - SLACK:
            return Verdict.MET
        return Verdict.MISSED if estimate.high < self.least else Verdict.UNCLEAR

    def __str__(self) -> str:
        return f"≥ {self.least:g}, low ≥ {self.least - SLACK:g}"


@dataclass(frozen=True, slots=True)
class MillisecondsAtMost:
    """An upper bound for the new side alone."""

    most: float

    def verdict(self, estimate: Estimate) -> Verdict:
        if not estimate.is_certain:
            return Verdict.UNCLEAR
        if estimate.high <= self.most:
            return Verdict.MET
        return Verdict.MISSED if estimate.low > self.most else Verdict.UNCLEAR

    def __str__(self) -> str:
        return f"new ≤ {self.most:g} ms"
