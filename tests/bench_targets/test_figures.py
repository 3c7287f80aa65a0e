"""The values of the figures in bench.targets, and when their targets are met."""

from pathlib import Path

import pytest

from bench.targets.figures import Bound, Figure, Pair, Run, at_least, at_most, below, ratios, share
from bench.targets.pick_up import against, claim_before, claim_returns
from bench.targets.snapshots import MOST_TIMES_SLOWER, Claims
from bench.targets.workers import Stuck

_HUNDRED = [float(number) for number in range(1, 101)]


@pytest.mark.parametrize(
    ("part", "expected"), [(0.0, 1.0), (0.005, 1.0), (0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1, 100.0)]
)
def test_a_percentile_is_the_smallest_value_that_this_share_does_not_exceed(part: float, expected: float) -> None:
    assert share(_HUNDRED, part) == expected


def test_every_percentile_of_one_value_is_that_value() -> None:
    assert {share([7.0], part) for part in (0.0, 0.5, 0.99, 1.0)} == {7.0}


@pytest.mark.parametrize(
    ("bound", "values", "verdict", "words"),
    [
        (at_least(0.8), [0.8], "met", "≥ 0.8"),
        (at_least(0.8), [0.79], "missed", "≥ 0.8"),
        (at_most(1_200), [1_200], "met", "≤ 1,200"),
        (at_most(1_200), [1_201], "missed", "≤ 1,200"),
        (below(5), [4.99], "met", "< 5"),
        (below(5), [5], "missed", "< 5"),
        (at_least(1), [0.1, 1.0, 9.0], "met", "≥ 1"),
        (at_least(1), [0.1, 0.2, 9.0], "missed", "≥ 1"),
    ],
)
def test_a_bound_judges_the_median(bound: Bound, values: list[float], verdict: str, words: str) -> None:
    assert (Figure("", values, bound).verdict, str(bound)) == (verdict, words)


def test_a_figure_without_a_bound_is_only_reported() -> None:
    assert Figure("", [1.0]).verdict == "reported"


def test_ratios_are_taken_within_each_pair() -> None:
    pairs = [Pair(Run(100, 1, 0, 0), Run(100, seconds, 0, 0)) for seconds in (0.5, 2.0, 1.0)]
    figure = ratios("", pairs, None)
    assert (figure.values, figure.value) == ([0.5, 2.0, 1.0], 1.0)


def claims(*windows: float) -> Claims:
    """A hundred claims in each ten-second window, all of the given duration."""
    return Claims([[milliseconds] * 100 for milliseconds in windows])


def test_the_first_ten_seconds_never_count_as_later_claims() -> None:
    assert claims(9, 1, 2, 3, 4).later_p99(1) == 4
    assert claims(9, 1).later_p99(1) == 1
    assert claims(9, 1).later_p99(0.25) == 1


def test_the_last_part_is_a_share_of_the_time() -> None:
    assert claims(1, 9, 9, 2).later_p99(0.25) == 2
    assert claims(1, 9, 9, 2).later_p99(0.75) == 9


@pytest.mark.parametrize(
    ("windows", "verdict"),
    [
        ((1, 1, 1, 1, 1, 1, 1, 1), "met"),
        ((1, 3, 3, 3, 3, 3, 3, 3), "met"),
        ((1, 1, 1, 9, 9, 1, 1, 1), "missed"),
        ((1, 1, 1, 1, 1, 1, 1, 9), "missed"),
    ],
)
def test_a_snapshot_that_slows_claims_at_any_time_misses_its_target(windows: tuple[float, ...], verdict: str) -> None:
    judged, *beside = claims(*windows).figures("idle reader")
    assert judged.bound == at_most(MOST_TIMES_SLOWER)
    assert judged.verdict == verdict
    assert {figure.verdict for figure in beside} == {"reported"}


def test_the_last_quarter_and_the_worst_ten_seconds_are_shown_with_all_later_claims() -> None:
    found = {figure.name: figure.value for figure in claims(2, 2, 2, 10, 2, 2, 4, 4).figures("idle reader")}
    assert found["idle reader: claim p99, last quarter"] == 4
    assert found["idle reader: claim p99, worst 10 s"] == 10
    assert found["idle reader: claim p99, worst 10 s against the first 10 s"] == 5


def test_a_period_without_claims_cannot_be_judged() -> None:
    with pytest.raises(Stuck, match="no claim was sent"):
        Claims([[], [1.0]]).figures("idle reader")
    with pytest.raises(Stuck, match="no claim was sent"):
        Claims([[1.0], []]).figures("idle reader")


def test_claims_are_grouped_by_ten_seconds_and_empty_claims_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "claims"
    file.write_text("99.0 9 1\n100.0 0.002 5\n109.9 0.001 0\n110.0 0.004 0\n129.9 0.003 7\n130.0 9 1\n")
    read = Claims.read(file, since=100.0, until=130.0)
    assert (read.windows, read.empty) == ([[1.0, 2.0], [4.0], [3.0]], 2)
    assert "2 of 4 claims found nothing and count, too" in read.figures("idle reader")[0].note


@pytest.mark.parametrize("bare", [0.0, -0.2])
def test_a_bare_pick_up_that_took_no_time_is_not_measured(bare: float) -> None:
    assert against(1.5, 1.0) == 1.5
    with pytest.raises(Stuck, match="nothing can be measured"):
        against(-1.0, bare)


def test_the_claim_of_a_job_is_the_last_nonempty_one_before_its_handler_started() -> None:
    returns = claim_returns("100.0 0.5 1\n102.0 0.25 1\n101.0 0.5 0\n")
    assert returns == [100.5, 102.25]
    assert claim_before(returns, 102.2) == 100.5
    assert claim_before(returns, 102.3) == 102.25
    with pytest.raises(Stuck):
        claim_before(returns, 100.4)
