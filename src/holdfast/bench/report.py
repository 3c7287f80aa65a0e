"""The figures of one run, as a table for people and as JSON for programs."""

from dataclasses import asdict, dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Rate:
    """So many jobs in so much time, and what it wrote to the write-ahead log."""

    jobs: int
    seconds: float
    wal_bytes: int

    @property
    def jobs_per_second(self) -> float:
        return self.jobs / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, float]:
        return {
            "jobs": self.jobs,
            "seconds": round(self.seconds, 3),
            "jobs_per_second": round(self.jobs_per_second, 1),
            "wal_bytes_per_job": round(self.wal_bytes / self.jobs, 1),
        }


@dataclass(frozen=True, slots=True)
class Latency:
    """From the end of the enqueue call to the handler's start; `how` the idle worker learns of the job."""

    how: str
    jobs: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Report:
    environment: dict[str, str | int]
    settings: dict[str, str | int]
    single: Rate
    bulk: Rate
    drains: dict[int, Rate]
    """By the number of worker processes."""
    latencies: list[Latency]

    @property
    def wal_bytes_per_job(self) -> float:
        """From enqueue to finish: enqueued in bulk, worked off by the first number of workers."""
        first = next(iter(self.drains.values()))
        return self.bulk.wal_bytes / self.bulk.jobs + first.wal_bytes / first.jobs


def as_dict(report: Report) -> dict[str, object]:
    """What `holdfast bench --json` prints. A rate has jobs, seconds, jobs_per_second and wal_bytes_per_job.

    `drain` has one rate for each number of workers; the times of `pick_up_latency` are milliseconds.
    """
    return {
        **report.environment,
        "settings": report.settings,
        "enqueue_single": report.single.as_dict(),
        "enqueue_bulk": report.bulk.as_dict(),
        "drain": [{"workers": workers, **rate.as_dict()} for workers, rate in report.drains.items()],
        "pick_up_latency": [asdict(latency) for latency in report.latencies],
        "wal_bytes_per_job": round(report.wal_bytes_per_job, 1),
    }


def as_table(report: Report) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("measured")
    for name in ("jobs", "seconds", "jobs/s", "WAL bytes/job"):
        table.add_column(name, justify="right")
    _add(table, "enqueue, one at a time, each committed", report.single)
    _add(table, f"enqueue, in batches of {report.settings['batch']:,}", report.bulk)
    for workers, rate in report.drains.items():
        _add(table, f"work off, {workers} worker process{'es' if workers > 1 else ''}", rate)
    return Group(
        table,
        _latencies(report),
        Text(f"From enqueue to finish a job writes {report.wal_bytes_per_job:,.0f} bytes of WAL."),
        Text(_line(report.environment), style="dim"),
        Text(_line(report.settings), style="dim"),
    )


def _latencies(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("pick-up by an idle worker: enqueue returned to handler started")
    for name in ("jobs", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for latency in report.latencies:
        times = (f"{time:,.1f}" for time in (latency.p50_ms, latency.p95_ms, latency.p99_ms))
        how = f"{latency.how}, every {report.settings['poll']}" if "poll" in latency.how else latency.how
        table.add_row(how, str(latency.jobs), *times)
    return table


def _add(table: Table, name: str, rate: Rate) -> None:
    wal = rate.wal_bytes / rate.jobs
    table.add_row(name, f"{rate.jobs:,}", f"{rate.seconds:.2f}", f"{rate.jobs_per_second:,.0f}", f"{wal:,.0f}")


def _line(values: dict[str, str | int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
