"""What paired readings say: the median, its exact interval, and whether a threshold is met, missed or unclear."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

CONFIDENCE = 0.95
SLACK = 0.03
"""The lower bound may be that much below the least median: 0.98 asks for 0.95."""


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median between two order statistics, which need no assumption about how the values spread."""

    median: float
    low: float
    high: float
    is_certain: bool
    """Whether low and high enclose the true median with 95%. Fewer than six values never do."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        ordered = sorted(values)
        rank = _rank(len(ordered))
        outer = max(rank, 1)
        return cls(statistics.median(ordered), ordered[outer - 1], ordered[-outer], is_certain=rank > 0)


def _rank(number: int) -> int:
    """The largest so that the value of this rank from below and the one from above enclose the median; 0 if none does.

    As many values lie below the true median as a coin shows heads.
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
    """For the ratio new/old, where more is better."""

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
    """For the new side alone."""

    most: float

    def verdict(self, estimate: Estimate) -> Verdict:
        if not estimate.is_certain:
            return Verdict.UNCLEAR
        if estimate.high <= self.most:
            return Verdict.MET
        return Verdict.MISSED if estimate.low > self.most else Verdict.UNCLEAR

    def __str__(self) -> str:
        return f"new ≤ {self.most:g} ms"
