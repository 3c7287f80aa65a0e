"""What paired readings show: the exact interval of a median, and when a threshold is met, missed or unclear."""

import math

import pytest

from bench.targets.against.rows import Reading, Row, Unit, as_table
from bench.targets.against.verdicts import CONFIDENCE, Estimate, MillisecondsAtMost, RatioAtLeast, Verdict

_STEADY = [1.0] * 12


@pytest.mark.parametrize(("number", "rank"), [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (17, 5), (20, 6)])
def test_the_interval_is_the_narrowest_pair_of_order_statistics_with_the_confidence(number: int, rank: int) -> None:
    estimate = Estimate.of([float(value) for value in range(number, 0, -1)])
    assert (estimate.low, estimate.high) == (rank, number + 1 - rank)
    assert estimate.is_certain
    # Values fall below the true median like coin tosses; the interval misses it if too few or too many of them do.
    outside = [2 * sum(math.comb(number, below) for below in range(most)) / 2**number for most in (rank, rank + 1)]
    assert outside[0] <= 1 - CONFIDENCE < outside[1]


@pytest.mark.parametrize("values", [[2.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_fewer_than_six_values_are_never_certain(values: list[float]) -> None:
    estimate = Estimate.of(values)
    assert (estimate.low, estimate.high) == (min(values), max(values))
    assert not estimate.is_certain
    assert RatioAtLeast(0.5).verdict(estimate) is Verdict.UNCLEAR
    assert MillisecondsAtMost(100).verdict(estimate) is Verdict.UNCLEAR


@pytest.mark.parametrize(
    ("median", "low", "high", "verdict"),
    [
        (1.0, 0.96, 1.1, "met"),
        (0.98, 0.95, 0.99, "met"),
        (1.2, 0.94, 1.5, "unclear"),
        (0.97, 0.96, 0.985, "unclear"),
        (0.9, 0.5, 0.98, "unclear"),
        (0.9, 0.5, 0.979, "missed"),
    ],
)
def test_at_least_requires_the_median_and_a_lower_bound_not_far_below(
    median: float, low: float, high: float, verdict: str
) -> None:
    threshold = RatioAtLeast(0.98)
    assert threshold.verdict(Estimate(median, low, high, is_certain=True)) == verdict
    assert str(threshold) == "≥ 0.98, low ≥ 0.95"


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(4, 5, "met"), (4, 5.1, "unclear"), (5, 9, "unclear"), (5.1, 9, "missed")]
)
def test_at_most_requires_the_whole_interval(low: float, high: float, verdict: str) -> None:
    assert MillisecondsAtMost(5).verdict(Estimate(4.9, low, high, is_certain=True)) == verdict


def row(unit: Unit, new: float, old: float | None, threshold: RatioAtLeast | MillisecondsAtMost | None = None) -> Row:
    return Row("a measure", unit, threshold, [Reading(new * value, old, "new") for value in _STEADY])


def test_a_ratio_above_one_is_better_for_rates_and_for_times() -> None:
    assert set(row(Unit.RATE, 200, 100).ratios) == {2.0}
    assert set(row(Unit.TIME, 100, 200).ratios) == {2.0}


def test_a_ratio_is_judged_within_pairs_and_milliseconds_by_the_new_side_alone() -> None:
    assert row(Unit.RATE, 100, 200, RatioAtLeast(0.98)).verdict is Verdict.MISSED
    assert row(Unit.TIME, 4, 1, MillisecondsAtMost(5)).verdict is Verdict.MET
    assert row(Unit.TIME, 4, None, MillisecondsAtMost(5)).verdict is Verdict.MET
    assert row(Unit.TIME, 4, 1).verdict is None
    assert Row("unread", Unit.RATE, RatioAtLeast(0.98)).verdict is Verdict.UNCLEAR


def test_pairs_without_an_old_reading_are_no_pairs() -> None:
    mixed = Row("claim", Unit.TIME, None, [Reading(1, 4, "new"), Reading(2, None, "new")])
    assert mixed.ratios == [4.0]
    assert mixed.as_json()["pairs"] == [
        {"new": 1, "old": 4, "first": "new"},
        {"new": 2, "old": None, "first": "new"},
    ]


def cells(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if "a measure" in line]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_median_interval_pairs_both_values_threshold_and_verdict() -> None:
    missed = row(Unit.RATE, 45_000, 50_000, RatioAtLeast(0.98))
    assert cells(as_table([missed], is_judged=True)) == [
        "a measure", "jobs/s", "≥ 0.98, low ≥ 0.95", "**missed**",
        "0.900", "0.900–0.900", "12", "45,000", "45,000–45,000", "50,000",
    ]  # fmt: skip
    assert cells(as_table([missed], is_judged=False))[3] == ""


def test_the_table_marks_an_interval_below_95_percent() -> None:
    few = Row("a measure", Unit.RATE, None, [Reading(1, 1, "new"), Reading(3, 1, "new")])
    assert cells(as_table([few], is_judged=True))[5] == "(1.000–3.000)"
