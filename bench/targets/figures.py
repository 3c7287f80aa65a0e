"""The results of one line: figures, their spread, and whether each meets its target."""

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """A number of jobs and the time they took, with the pages accessed and WAL written by the server."""

    jobs: int
    seconds: float
    buffers: float
    wal_bytes: float

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds

    @property
    def buffers_per_job(self) -> float:
        return self.buffers / self.jobs

    @property
    def wal_per_job(self) -> float:
        return self.wal_bytes / self.jobs

    def as_dict(self) -> dict[str, float]:
        return {
            "jobs": self.jobs,
            "seconds": round(self.seconds, 4),
            "jobs_per_second": round(self.rate, 1),
            "buffers_per_job": round(self.buffers_per_job, 2),
            "wal_bytes_per_job": round(self.wal_per_job, 1),
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """Two consecutive runs; the target is about `measured`."""

    measured: Run
    limit: Run

    @property
    def ratio(self) -> float:
        return self.measured.rate / self.limit.rate

    @property
    def buffers_ratio(self) -> float:
        return self.measured.buffers_per_job / self.limit.buffers_per_job


@dataclass(frozen=True, slots=True)
class Bound:
    words: str
    value: float
    holds: Callable[[float, float], bool]

    def __str__(self) -> str:
        return f"{self.words} {self.value:,g}"


def at_least(value: float) -> Bound:
    return Bound("≥", value, operator.ge)


def at_most(value: float) -> Bound:
    return Bound("≤", value, operator.le)


def below(value: float) -> Bound:
    return Bound("<", value, operator.lt)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. Its value is the median of `values`. Without a bound it is only reported."""

    name: str
    values: Sequence[float]
    bound: Bound | None = None
    unit: str = ""
    digits: int = 2
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return "reported"
        return "met" if self.bound.holds(self.value, self.bound.value) else "missed"

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) < 2:
            return self.value, self.value
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return first, third

    def shown(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"

    def as_dict(self) -> dict[str, Any]:
        first, third = self.quartiles
        return {
            "name": self.name,
            "unit": self.unit,
            "digits": self.digits,
            "median": self.value,
            "least": min(self.values),
            "first_quartile": first,
            "third_quartile": third,
            "most": max(self.values),
            "values": list(self.values),
            "target": None if self.bound is None else str(self.bound),
            "verdict": self.verdict,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Line:
    """The results of one measurement: its figures, and the data behind them."""

    figures: Sequence[Figure]
    details: dict[str, Any] = field(default_factory=dict)


def ratios(name: str, pairs: Sequence[Pair], bound: Bound | None) -> Figure:
    return Figure(name, [pair.ratio for pair in pairs], bound, "ratio")


def costs(pairs: Sequence[Pair], measured: str, limit: str) -> list[Figure]:
    """The rates of both sides, and their costs in buffers and WAL, which do not depend on the times."""
    figures: list[Figure] = []
    for name, runs in ((measured, [pair.measured for pair in pairs]), (limit, [pair.limit for pair in pairs])):
        figures += run_figures(name, runs)
    return figures


def run_figures(name: str, runs: Sequence[Run], bound: Bound | None = None) -> list[Figure]:
    return [
        Figure(name, [run.rate for run in runs], bound, "jobs/s", 0),
        Figure(f"{name}: buffers", [run.buffers_per_job for run in runs], None, "per job", 1),
        Figure(f"{name}: WAL", [run.wal_per_job for run in runs], None, "bytes/job", 0),
    ]


def as_details(pairs: Sequence[Pair]) -> dict[str, Any]:
    return {"pairs": [{"measured": pair.measured.as_dict(), "limit": pair.limit.as_dict()} for pair in pairs]}


def share(ordered: Sequence[float], part: float) -> float:
    """The smallest of the sorted values that at least `part` of them do not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
