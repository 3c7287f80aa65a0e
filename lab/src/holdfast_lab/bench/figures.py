"""What one run measured: values only."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server has done so far. `buffers`: pages looked at; None where the server cannot tell in time."""

    wal_bytes: int
    buffers: int | None


@dataclass(frozen=True, slots=True)
class Rate:
    """So many jobs in so much time, and what the server did for each."""

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
    """The median of all rounds, the lowest and the highest."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        known = list(values)
        return cls(median(known), min(known), max(known))


@dataclass(frozen=True, slots=True)
class RateMeasure:
    """One rate for each round, and beside each what the same work took bare; `limits` may be empty."""

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
        """Round by round, because what else the machine does changes with time."""
        pairs = zip(self.rates, self.limits, strict=True)
        return Spread.of(rate.per_second / limit.per_second for rate, limit in pairs)


@dataclass(frozen=True, slots=True)
class LatencyMeasure:
    """Milliseconds of single jobs, a list for each round."""

    limit_title: str
    rounds: Sequence[Sequence[float]]
    limits: Sequence[Sequence[float]]

    @property
    def of_limit(self) -> Spread:
        """By the medians of each round."""
        return Spread.of(median(ours) / median(bare) for ours, bare in zip(self.rounds, self.limits, strict=True))


def percentiles(rounds: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """p50, p95 and p99 of all rounds together."""
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
    """As `bulk`, with the time that app.job took for the same jobs."""
    drains: dict[int, RateMeasure]
    """By the number of worker processes."""
    one_table: Sequence[Rate]
    """The simplest queue there is, as the scale for what leases, fences and history cost."""
    idle: LatencyMeasure
    half_load: LatencyMeasure
    load_per_second: float
    polled: LatencyMeasure

    @property
    def wal_bytes_per_job(self) -> float:
        """From enqueue to finish: enqueued in bulk, worked off by the first number of workers."""
        first = next(iter(self.drains.values()))
        return sum(median(rate.wal_bytes_per_job for rate in measure.rates) for measure in (self.bulk, first))
