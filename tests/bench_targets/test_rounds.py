"""The order in which a comparison measures its sides, when it ends, and what happens when a measure fails."""

from collections.abc import Mapping, Sequence

import pytest

from bench.targets.against.checkouts import Unusable
from bench.targets.against.command import MISSED, UNCLEAR, exit_code, selected
from bench.targets.against.rounds import Measure, Pace, take_rounds
from bench.targets.against.rows import NEW, OLD, Row, Unit
from bench.targets.against.verdicts import RatioAtLeast
from bench.targets.workers import Stuck

_VALUES = {NEW: [100.0], OLD: [200.0]}


class Recorder:
    """Measures that record each time they are taken, on a clock that advances by one second each time."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.now = 0.0

    def measure(
        self,
        name: str,
        most_pairs: int | None = None,
        most_old: int | None = None,
        threshold: RatioAtLeast | None = None,
        breaks: bool = False,
    ) -> Measure:
        async def take(sides: Sequence[str]) -> Mapping[str, Sequence[float]]:
            self.taken.append(f"{name}: {' '.join(sides)}")
            self.now += 1
            if breaks:
                raise Stuck("it\nhangs")
            return {side: _VALUES[side] for side in sides}

        return Measure(name, [Row(name, Unit.RATE, threshold)], take, 1.0, most_pairs, most_old)

    def clock(self) -> float:
        return self.now


async def test_sides_alternate_in_going_first_and_measures_alternate_in_pairs() -> None:
    recorder = Recorder()
    one, other = recorder.measure("one"), recorder.measure("other")
    await take_rounds([one, other], 3, Pace())
    assert recorder.taken == [
        "one: new old", "other: new old", "one: old new", "other: old new", "one: new old", "other: new old",
    ]  # fmt: skip
    assert [reading.first for reading in one.rows[0].readings] == [NEW, OLD, NEW]
    assert one.rows[0].ratios == [0.5, 0.5, 0.5]


async def test_slow_measures_are_taken_less_often() -> None:
    recorder = Recorder()
    seldom, rare = recorder.measure("seldom", most_pairs=2), recorder.measure("rare", most_old=1)
    await take_rounds([seldom, rare], 3, Pace())
    assert recorder.taken == ["seldom: new old", "rare: new old", "seldom: old new", "rare: new", "rare: new"]
    assert [reading.old for reading in rare.rows[0].readings] == [200.0, None, None]


async def test_the_rounds_end_within_the_time_limit() -> None:
    recorder, rounds = Recorder(), list[int]()
    await take_rounds(
        [recorder.measure("one")], 100, Pace(5.5, recorder.clock), lambda: rounds.append(len(recorder.taken))
    )
    assert rounds == [1, 2, 3, 4, 5]


async def test_a_failing_measure_is_not_repeated_and_does_not_stop_others() -> None:
    recorder = Recorder()
    broken, whole = recorder.measure("broken", breaks=True), recorder.measure("whole")
    await take_rounds([broken, whole], 2, Pace())
    assert recorder.taken == ["broken: new old", "whole: new old", "whole: old new"]
    assert broken.problem == "Stuck: it hangs"
    assert exit_code([broken, whole], is_judged=False) == MISSED


@pytest.mark.parametrize(("least", "pairs", "expected"), [(0.5, 6, 0), (0.98, 6, MISSED), (0.5, 5, UNCLEAR)])
async def test_the_exit_code_reflects_the_worst_verdict(least: float, pairs: int, expected: int) -> None:
    measure = Recorder().measure("judged", threshold=RatioAtLeast(least))
    await take_rounds([Recorder().measure("shown"), measure], pairs, Pace())
    assert exit_code([measure], is_judged=True) == expected
    assert exit_code([measure], is_judged=False) == 0


def test_measures_are_chosen_by_name() -> None:
    one, other = Recorder().measure("one"), Recorder().measure("other")
    assert selected([one, other], ["other"]) == [other]
    assert selected([one, other], None) == [one, other]
    with pytest.raises(Unusable, match="'nothing' is not one of one, other"):
        selected([one, other], ["one", "nothing"])
