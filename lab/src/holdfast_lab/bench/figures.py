"""The figures of one run, as plain values."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Counters:
    """The server's work so far. `buffers`: pages accessed, or None if the server cannot report them in time."""

    wal_bytes: int
    buffers: int | None


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of jobs and the time they took, with the server's work per job."""

    jobs: int
    seconds: float
    wal_bytes_per_job: float
    buffers_per_job: float | None

    @classmethod
    def between(cls, before: Counters, after: Counters, jobs: int, seconds: float) -> "Rate":
        buffers = None if before.buffers is None or after.buffers is None else (after.buffers - before.buffers) / jobs
        return cls(jobs, seconds, (after.wal_bytes - before.wal_bytes) / jobs, buffers)

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, lowest and highest value of all rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        known = list(values)
        return cls(median(known), min(known), max(known))


@dataclass(frozen=True, slots=True)
class RateMeasure:
    """One rate per round, each next to the rate of the same work without Holdfast; `limits` may be empty."""

    limit_title: str
    rates: Sequence[Rate]
    limits: Sequence[Rate]

    @property
    def per_second(self) -> Spread:
        return Spread.of(rate.per_second for rate in self.rates)

    @property
    def limit_per_second(self) -> Spread:
        return Spread.of(limit.per_second for limit in self.limits)

    @property
    def of_limit(self) -> Spread:
        """Compared within each round, because the machine's other load changes over time."""
        pairs = zip(self.rates, self.limits, strict=True)
        return Spread.of(rate.per_second / limit.per_second for rate, limit in pairs)


@dataclass(frozen=True, slots=True)
class LatencyMeasure:
    """Latencies of single jobs in milliseconds, one list per round."""

    limit_title: str
    rounds: Sequence[Sequence[float]]
    limits: Sequence[Sequence[float]]

    @property
    def of_limit(self) -> Spread:
        """Compares the medians of each round."""
        return Spread.of(median(ours) / median(bare) for ours, bare in zip(self.rounds, self.limits, strict=True))


def percentiles(rounds: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """p50, p95 and p99 over all rounds together."""
    known = sorted(value for values in rounds for value in values)
    p50, p95, p99 = (known[math.ceil(share * len(known)) - 1] for share in (0.50, 0.95, 0.99))
    return p50, p95, p99


@dataclass(frozen=True, slots=True)
class Report:
    environment: dict[str, str | int]
    settings: dict[str, str | int]
    rounds: int
    single: RateMeasure
    bulk: RateMeasure
    bulk_with_making_per_second: float
    """Like `bulk`, including the time that app.job took for the same jobs."""
    drains: dict[int, RateMeasure]
    """By number of worker processes."""
    one_table: Sequence[Rate]
    """The simplest possible queue, as a scale for the cost of leases, fences and history."""
    idle: LatencyMeasure
    half_load: LatencyMeasure
    load_per_second: float
    polled: LatencyMeasure

    @property
    def wal_bytes_per_job(self) -> float:
        """From enqueue to finish: jobs enqueued in bulk and drained by the first number of workers."""
        first = next(iter(self.drains.values()))
        return sum(median(rate.wal_bytes_per_job for rate in measure.rates) for measure in (self.bulk, first))
