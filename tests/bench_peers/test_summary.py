"""The figures of a run become medians and ratios; turns measured on only one side do not count."""

from bench.peers.measure import _at
from bench.peers.summary import Spread, Summary

_PAIR = "ours/default:theirs/best"
_POINTS = [(1, 10.0), (500, 20.0), (1000, 30.0)]


def _side(setting: str, turn: int, rate: float, workers: int = 1) -> dict[str, object]:
    line = {"part": "pairs", "round": turn, "pair": _PAIR, "setting": setting, "measure": "drain"}
    return line | {"workers": workers, "rate": rate}


def _ratios(*lines: dict[str, object]) -> Spread | None:
    return Summary(lines).ratios(_PAIR, "ours/default", "theirs/best", workers=1)


def test_a_turn_measured_on_only_one_side_does_not_count() -> None:
    lines = [_side("ours/default", turn, rate) for turn, rate in enumerate((200.0, 900.0, 400.0))]
    lines += [_side("theirs/best", 0, 100.0), _side("theirs/best", 2, 100.0), _side("theirs/best", 3, 1.0)]

    assert _ratios(*lines) == Spread(3.0, 2.0, 4.0, 2)


def test_ratios_compare_the_same_turn_in_any_order_of_the_sides() -> None:
    first = [_side("ours/default", 0, 100.0), _side("theirs/best", 0, 50.0)]
    second = [_side("theirs/best", 1, 1000.0), _side("ours/default", 1, 3000.0)]

    assert _ratios(*first, *second) == Spread(2.5, 2.0, 3.0, 2)


def test_a_different_number_of_workers_is_a_different_figure() -> None:
    assert _ratios(_side("ours/default", 0, 2.0, workers=2), _side("theirs/best", 0, 1.0, workers=1)) is None


def test_no_job_was_started_before_the_first_start() -> None:
    assert _at(_POINTS, 9.0) == 0
    assert _at(_POINTS, 10.0) == 0


def test_starts_between_two_counts_are_interpolated() -> None:
    assert _at(_POINTS, 25.0) == 750
    assert _at([(1, 10.0), (501, 20.0)], 15.0) == 251


def test_nothing_is_extrapolated_after_the_last_count() -> None:
    assert _at(_POINTS, 99.0) == 1000
