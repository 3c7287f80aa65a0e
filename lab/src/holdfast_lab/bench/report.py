"""The figures of one run, as tables for people and as JSON for programs."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast_lab.bench.app import PAYLOAD_BYTES
from holdfast_lab.bench.figures import LatencyMeasure, Rate, RateMeasure, Report, Spread, percentiles
from holdfast_lab.bench.measure import workers_text

_UNBOUND = 1_000_000
_LIMIT = """\
the same work on plain asyncpg in the same run, without the engine. Enqueue: the same rows by one INSERT per job, \
and by COPY of records. Drain: Holdfast's own claim and finish statements in a loop, in turn or overlapping, \
whichever is faster in each round. Pick-up: INSERT with NOTIFY, and a claim in another process."""
_BULK = """\
jobs and records are made beforehand on both sides; with app.job timed too: {rate:,.0f} jobs/s."""
_COST = """\
bytes of WAL and pages accessed per job. From enqueue to finish, a job with a payload of {payload} bytes writes \
{wal:,.0f} bytes."""
_PICK_UP = """\
from the return of the enqueue call to the start of the handler (limit: to the return of the claim), on an initially \
empty store."""
_ONE_TABLE = "a queue that only claims and deletes, without leases, fences or history: {rate:,.0f} jobs/s."
_ROUNDS = "{rounds}; rates are medians, ratios are medians of each round's ratio, latencies are over all jobs."


def as_dict(report: Report) -> dict[str, object]:
    """The value that `holdfast bench --json` prints.

    A rate has the median, lowest and highest of all rounds; `of_limit` is computed within each round. `drain` has one
    entry per number of workers. `pick_up_latency` is in milliseconds, and its `of_limit` compares p50.
    """
    drains = [{"workers": count, **_rate(measure)} for count, measure in report.drains.items()]
    load = round(report.load_per_second, 1)
    return {
        **report.environment,
        "settings": report.settings,
        "payload_bytes": PAYLOAD_BYTES,
        "rounds": report.rounds,
        "enqueue_single": _rate(report.single),
        "enqueue_bulk": _rate(report.bulk),
        "drain": drains,
        "one_table_jobs_per_second": _spread(Spread.of(rate.per_second for rate in report.one_table)),
        "pick_up_latency": [
            {"how": "idle, woken by NOTIFY", **_latency(report.idle)},
            {"how": "half load, woken by NOTIFY", "jobs_per_second": load, **_latency(report.half_load)},
            {"how": "idle, polling alone", **_latency(report.polled)},
        ],
        "wal_bytes_per_job": round(report.wal_bytes_per_job, 1),
    }


def _rate(measure: RateMeasure) -> dict[str, object]:
    limit = {"what": measure.limit_title, **_figures(measure.limits)}
    return {**_figures(measure.rates), "limit": limit, "of_limit": _spread(measure.of_limit, 3)}


def _figures(rates: Sequence[Rate]) -> dict[str, object]:
    buffers = _buffers(rates)
    return {
        "jobs": rates[0].jobs,
        "jobs_per_second": _spread(Spread.of(rate.per_second for rate in rates)),
        "wal_bytes_per_job": round(_wal(rates), 1),
        "buffers_per_job": None if buffers is None else round(buffers, 1),
    }


def _latency(measure: LatencyMeasure) -> dict[str, object]:
    limit = {"what": measure.limit_title, **_times(measure.limits)} if measure.limits else None
    of_limit = _spread(measure.of_limit, 3) if measure.limits else None
    return {**_times(measure.rounds), "limit": limit, "of_limit": of_limit}


def _times(rounds: Sequence[Sequence[float]]) -> dict[str, float]:
    p50, p95, p99 = percentiles(rounds)
    jobs = sum(map(len, rounds))
    return {"jobs": jobs, "p50_ms": round(p50, 3), "p95_ms": round(p95, 3), "p99_ms": round(p99, 3)}


def _spread(spread: Spread, digits: int = 1) -> dict[str, float]:
    return {
        "median": round(spread.median, digits),
        "lowest": round(spread.lowest, digits),
        "highest": round(spread.highest, digits),
    }


def as_table(report: Report, width: int) -> RenderableType:
    """The report for people. The spread is left out if the terminal is too narrow for it."""
    rates = _rates(report, with_spread=report.rounds > 1)
    if Console(width=_UNBOUND).measure(rates).maximum > width:
        rates = _rates(report, with_spread=False)
    return Group(rates, Text(), _latencies(report), Text(), _notes(report))


def _rates(report: Report, *, with_spread: bool) -> Table:
    table = _table("rates", "jobs/s", *(("spread",) if with_spread else ()), "limit", "of limit", "WAL/job", "buffers")
    _add(table, "enqueue, one by one", report.single, with_spread=with_spread)
    _add(table, f"enqueue, by {report.settings['batch']:,}", report.bulk, with_spread=with_spread)
    for workers, measure in report.drains.items():
        _add(table, f"drain, {workers_text(workers)}", measure, with_spread=with_spread)
    return table


def _add(table: Table, name: str, measure: RateMeasure, *, with_spread: bool) -> None:
    rate, buffers = measure.per_second, _buffers(measure.rates)
    table.add_row(
        name,
        f"{rate.median:,.0f}",
        *((f"{rate.lowest:,.0f}–{rate.highest:,.0f}",) if with_spread else ()),
        f"{measure.limit_per_second.median:,.0f}",
        f"{measure.of_limit.median:.0%}",
        f"{_wal(measure.rates):,.0f}",
        "–" if buffers is None else f"{buffers:,.1f}",
    )


def _latencies(report: Report) -> Table:
    table = _table("pick-up, ms", "p50", "p95", "p99", "limit p50", "p99", "of limit")
    _add_times(table, "idle", report.idle)
    _add_times(table, f"half load, {report.load_per_second:,.0f} jobs/s", report.half_load)
    _add_times(table, f"idle, polling every {report.settings['poll']}", report.polled)
    return table


def _add_times(table: Table, name: str, measure: LatencyMeasure) -> None:
    ours = (f"{time:,.1f}" for time in percentiles(measure.rounds))
    if not measure.limits:
        table.add_row(name, *ours)
        return
    p50, _, p99 = percentiles(measure.limits)
    table.add_row(name, *ours, f"{p50:,.1f}", f"{p99:,.1f}", f"{measure.of_limit.median:.1f} ×")


def _notes(report: Report) -> Table:
    one_table = median(rate.per_second for rate in report.one_table)
    notes = Table.grid(padding=(0, 2, 0, 0))
    notes.add_column(no_wrap=True, style="dim")
    notes.add_column()
    notes.add_row("limit", _LIMIT)
    notes.add_row("bulk", _BULK.format(rate=report.bulk_with_making_per_second))
    notes.add_row("one table", _ONE_TABLE.format(rate=one_table))
    notes.add_row("WAL, buffers", _COST.format(payload=PAYLOAD_BYTES, wal=report.wal_bytes_per_job))
    notes.add_row("pick-up", _PICK_UP)
    if report.rounds > 1:
        notes.add_row("rounds", _ROUNDS.format(rounds=report.rounds))
    notes.add_row("here", _line(report.environment))
    notes.add_row("settings", _line(report.settings))
    return notes


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _wal(rates: Sequence[Rate]) -> float:
    return median(rate.wal_bytes_per_job for rate in rates)


def _buffers(rates: Sequence[Rate]) -> float | None:
    known = [rate.buffers_per_job for rate in rates if rate.buffers_per_job is not None]
    return median(known) if known else None


def _line(values: dict[str, str | int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
