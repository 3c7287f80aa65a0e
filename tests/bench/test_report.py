"""How a run's figures are shown: medians over rounds, ratios within rounds, and tables that fit the terminal."""

import io

import pytest
from rich.console import Console

from holdfast_lab.bench.figures import Counters, LatencyMeasure, Rate, RateMeasure, Report, percentiles
from holdfast_lab.bench.report import as_dict, as_table


def rate(jobs_per_second: float) -> Rate:
    return Rate(1_000, 1_000 / jobs_per_second, wal_bytes_per_job=600.4, buffers_per_job=20.06)


def report(*, rounds: int, buffers: bool = True) -> Report:
    ours = [rate(120_000), rate(100_000), rate(130_000)][:rounds]
    limits = [rate(200_000), rate(125_000), rate(260_000)][:rounds]
    if not buffers:
        ours = [Rate(each.jobs, each.seconds, each.wal_bytes_per_job, None) for each in ours]
    drain = RateMeasure("bare claim and finish", ours, limits)
    woken = LatencyMeasure("bare NOTIFY to claim", [[1.0, 2.0, 6.0]] * rounds, [[1.0, 1.0, 3.0]] * rounds)
    return Report(
        {"holdfast": "1.0", "store": "given"},
        {"batch": 1_000, "poll": "1s"},
        rounds,
        RateMeasure("bare insert", ours, limits),
        RateMeasure("COPY of records", ours, limits),
        48_000.0,
        {1: drain, 2: drain},
        limits,
        woken,
        woken,
        6_400.0,
        LatencyMeasure("", [[300.0, 990.0]], []),
    )


def shown(report: Report, width: int) -> str:
    out = Console(file=io.StringIO(), width=width, highlight=False)
    out.print(as_table(report, width))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_ratio_is_the_median_of_the_ratios_in_each_round() -> None:
    measure = report(rounds=3).bulk
    assert (measure.per_second.median, measure.limit_per_second.median) == pytest.approx((120_000, 200_000))
    assert measure.of_limit.median == pytest.approx(0.6)
    assert (measure.of_limit.lowest, measure.of_limit.highest) == pytest.approx((0.5, 0.8))


def test_percentiles_cover_all_rounds_together() -> None:
    assert percentiles([[3.0, 1.0], [2.0, 4.0]]) == (2.0, 4.0, 4.0)
    assert percentiles([[7.0]]) == (7.0, 7.0, 7.0)


def test_the_work_of_the_server_is_shown_per_job() -> None:
    counted = Rate.between(Counters(1_000, 500), Counters(7_000, 700), 10, 2.0)
    assert (counted.per_second, counted.wal_bytes_per_job, counted.buffers_per_job) == (5.0, 600.0, 20.0)
    assert Rate.between(Counters(0, None), Counters(1, None), 10, 2.0).buffers_per_job is None


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_tables_fit_a_terminal_and_lose_no_figure(width: int, rounds: int) -> None:
    lines = shown(report(rounds=rounds), width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    (drain,) = [line for line in lines if line.startswith("drain, 2 workers")]
    assert drain.split()[3] == "120,000"
    assert drain.split()[-3:] == ["60%", "600", "20.1"]
    (idle,) = [line for line in lines if line.startswith("idle  ")]
    assert idle.split() == ["idle", "2.0", "6.0", "6.0", "1.0", "3.0", "2.0", "×"]


def test_the_spread_is_shown_if_it_exists_and_fits() -> None:
    assert "100,000–130,000" in shown(report(rounds=3), 100)
    assert "100,000–130,000" not in shown(report(rounds=3), 70)
    assert "spread" not in shown(report(rounds=1), 100)


def test_buffers_that_the_server_could_not_count_are_left_out() -> None:
    (line,) = [line for line in shown(report(rounds=1, buffers=False), 80).splitlines() if "1 worker " in line]
    assert line.split()[-1] == "–"
    single = as_dict(report(rounds=1, buffers=False))["enqueue_single"]
    assert isinstance(single, dict)
    assert single["buffers_per_job"] is None


def test_the_cost_of_making_jobs_is_shown_next_to_the_rate_without_it() -> None:
    assert "with app.job timed too: 48,000 jobs/s." in shown(report(rounds=1), 200)
