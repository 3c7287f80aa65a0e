"""How long the background waits after work, without work and after a failure."""

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.runtime.pacing import Pacing
from holdfast.wake import Told


def ms(number: float) -> timedelta:
    return timedelta(milliseconds=number)


class Highest(Random):
    def random(self) -> float:
        return 1.0


class Lowest(Random):
    def random(self) -> float:
        return 0.0


OF_THE_TABLE = Pacing(
    busy_delay=ms(250),
    idle_min=ms(1000),
    idle_max=ms(30000),
    idle_jitter=ms(500),
    error_min=ms(30000),
    error_max=ms(30000),
    error_jitter=ms(2000),
)


def test_a_busy_process_comes_back_soon() -> None:
    assert (OF_THE_TABLE.busy(Lowest()), OF_THE_TABLE.busy(Highest())) == (0.25, 0.75)
    assert Pacing(idle_jitter=ms(500)).busy(Highest()) == 0


def test_an_idle_process_looks_less_and_less_often_up_to_a_limit() -> None:
    assert [OF_THE_TABLE.idle(times, Lowest()) for times in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert [OF_THE_TABLE.idle(times, Highest()) for times in range(1, 8)] == [1.5, 2.5, 4.5, 8.5, 16.5, 30.5, 30.5]
    assert OF_THE_TABLE.idle(10**9, Lowest()) == 30


def test_a_notified_process_may_wait_longer_but_never_shorter() -> None:
    told = replace(OF_THE_TABLE, told_max=ms(90000))
    assert [told.idle(times, Lowest(), told=Told(0)) for times in range(1, 10)] == [1, 2, 4, 8, 16, 32, 64, 90, 90]
    # The default is three seconds with a poll of one second.
    assert OF_THE_TABLE.idle(9, Lowest(), told=Told(0)) == 30
    assert Pacing().idle(20, Lowest(), told=Told(0)) == 3


def test_a_process_notified_for_a_long_time_does_not_look_again_soon() -> None:
    told = replace(OF_THE_TABLE, told_max=ms(90000))
    waits = [told.idle(1, Lowest(), told=Told(seconds)) for seconds in (0, 0.5, 1.5, 60, 3600)]
    assert waits == [1, 1, 1.5, 60, 90]
    assert told.idle(4, Lowest(), told=Told(2)) == 8


def test_many_workers_for_the_same_jobs_share_the_looks() -> None:
    """Together they look eight times per second, and each of them at least every ten seconds."""
    waits = {others: Pacing().idle(20, Lowest(), told=Told(3600, others)) for others in (0, 1, 23, 31, 63, 79, 999)}
    assert waits == {0: 3, 1: 3, 23: 3, 31: 4, 63: 8, 79: 10, 999: 10}
    assert Pacing().idle(20, Highest(), told=Told(3600, 63)) == 6, "not all at once"
    asked_for = Pacing(told_max=ms(5000), crowd_max=ms(5000))
    assert asked_for.idle(20, Lowest(), told=Told(3600, 999)) == 5


def test_a_failure_has_a_separate_wait() -> None:
    assert (OF_THE_TABLE.error(1, Lowest()), OF_THE_TABLE.error(9, Highest())) == (30, 32)
    ours = Pacing()
    assert [round(ours.error(times, Lowest()), 1) for times in range(1, 9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]


def test_by_default_an_idle_process_never_waits_longer_than_the_poll() -> None:
    assert max(Pacing().idle(times, Highest()) for times in range(1, 50)) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"idle_min": ms(2000)}, {"idle_min": ms(0)}, {"error_min": ms(6000)}, {"error_min": ms(0)}],
    ids=str,
)
def test_contradictory_settings_are_refused(wrong: dict[str, timedelta]) -> None:
    with pytest.raises(InvalidInput, match="backoff_min"):
        Pacing(**wrong)
