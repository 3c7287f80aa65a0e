"""Every retry policy against its formula, and parsing policies from text."""

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import InvalidInput
from holdfast.domain.retry import (
    DEFAULT_BACKOFF,
    Backoff,
    DecorrelatedJitter,
    Exponential,
    FullJitter,
    Steps,
    decorrelated_jitter,
    doubling_minutes,
    exponential,
    full_jitter,
    parse_backoff,
    power_of_two,
    steps,
    to_backoff,
)

MICROSECOND = timedelta(microseconds=1)
durations = st.timedeltas(min_value=MICROSECOND, max_value=timedelta(days=36_500))
attempts = st.integers(1, 2_000)
chances = st.floats(0, 1, exclude_max=True)


class Loaded(Random):
    """Always draws the same number."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def random(self) -> float:
        return self.chance


def _doubled(base: timedelta, times: int, most: timedelta) -> timedelta:
    """min(most, base * 2^times), in whole microseconds, which never overflow."""
    microseconds: int = (base // MICROSECOND) * 2**times
    return min(most // MICROSECOND, microseconds) * MICROSECOND


@given(base=durations, most=durations, jitter=durations, n=attempts, chance=chances)
def test_exponential(base: timedelta, most: timedelta, jitter: timedelta, n: int, chance: float) -> None:
    base, most = min(base, most), max(base, most)
    policy = exponential(base, most, jitter)
    assert policy.delay(n, Loaded(chance)) == _doubled(base, n - 1, most) + chance * jitter


@given(base=durations, most=durations, n=attempts, chance=chances)
def test_full_jitter(base: timedelta, most: timedelta, n: int, chance: float) -> None:
    base, most = min(base, most), max(base, most)
    assert full_jitter(base, most).delay(n, Loaded(chance)) == chance * _doubled(base, n, most)


@given(base=durations, most=durations, n=st.integers(1, 60), chance=chances)
def test_decorrelated_jitter_follows_its_chain(base: timedelta, most: timedelta, n: int, chance: float) -> None:
    base, most = min(base, most), max(base, most)
    expected = base
    for _ in range(n):
        expected = min(most, base + chance * (3 * expected - base))
    assert decorrelated_jitter(base, most).delay(n, Loaded(chance)) == expected


@given(base=durations, most=durations, n=attempts, seed=st.integers())
def test_decorrelated_jitter_stays_between_base_and_max(base: timedelta, most: timedelta, n: int, seed: int) -> None:
    base, most = min(base, most), max(base, most)
    assert base <= decorrelated_jitter(base, most).delay(n, Random(seed)) <= most


@given(delays=st.lists(durations, min_size=1, max_size=5), n=attempts, chance=chances)
def test_steps_are_used_in_order_and_the_last_repeats(delays: list[timedelta], n: int, chance: float) -> None:
    assert steps(*delays).delay(n, Loaded(chance)) == delays[min(n, len(delays)) - 1]


def _first(policy: Backoff, count: int) -> list[float]:
    return [policy.delay(n, Loaded(0.0)).total_seconds() for n in range(1, count + 1)]


def test_the_named_policies_produce_the_documented_delays() -> None:
    assert _first(power_of_two(), 12) == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    assert _first(doubling_minutes(), 9) == [60 * minutes for minutes in (1, 2, 4, 8, 16, 32, 60, 60, 60)]
    assert _first(exponential(), 10) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert _first(steps("1m", "5m", "15m"), 4) == [60, 300, 900, 900]


def test_jitter_spreads() -> None:
    for policy in (full_jitter(), decorrelated_jitter(), exponential("1s", "1m", "1s")):
        assert len({policy.delay(5, Random(seed)) for seed in range(50)}) > 40


def test_the_default_is_full_jitter_from_half_a_second_to_half_a_minute() -> None:
    assert FullJitter(timedelta(milliseconds=500), timedelta(seconds=30)) == DEFAULT_BACKOFF == to_backoff(None)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("full-jitter", full_jitter()),
        ("full-jitter base=1s max=1m", FullJitter(timedelta(seconds=1), timedelta(minutes=1))),
        (
            "exponential base=5s max=2m jitter=500ms",
            Exponential(timedelta(seconds=5), timedelta(minutes=2), timedelta(milliseconds=500)),
        ),
        ("exponential 5s 2m", Exponential(timedelta(seconds=5), timedelta(minutes=2))),
        (
            " exponential, base=5s,  max=2m ",
            Exponential(timedelta(seconds=5), timedelta(minutes=2)),
        ),
        ("power-of-two cap=8s", Exponential(timedelta(seconds=2), timedelta(seconds=8))),
        ("doubling-minutes", Exponential(timedelta(minutes=1), timedelta(hours=1))),
        ("decorrelated-jitter", DecorrelatedJitter(timedelta(milliseconds=500), timedelta(seconds=30))),
        ("steps 1m 5m 15m", Steps((timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15)))),
        ("steps 0s", Steps((timedelta(0),))),
    ],
)
def test_a_policy_can_be_written_as_text(text: str, policy: Backoff) -> None:
    assert parse_backoff(text) == policy
    assert to_backoff(text) == policy


KNOWN = "exponential, power-of-two, doubling-minutes, full-jitter, decorrelated-jitter, steps"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", f"backoff: unknown policy ''; known are {KNOWN}"),
        ("linear", f"backoff: unknown policy 'linear'; known are {KNOWN}"),
        ("Exponential", f"backoff: unknown policy 'Exponential'; known are {KNOWN}"),
        ("steps", 'steps: give at least one delay, as in steps("1m", "5m", "15m")'),
        ("steps 1m soon", 'steps: \'soon\' is not a duration; write it like "90s", "5m" or "1h30m"'),
        ("exponential base=5", 'base: \'5\' is not a duration; write it like "90s", "5m" or "1h30m"'),
        ("exponential base=", 'base: \'\' is not a duration; write it like "90s", "5m" or "1h30m"'),
        ("exponential base=-5s", "base: '-5s' is negative; a duration is zero or more"),
        ("exponential base=0s", "base: must be more than zero, or every retry would be immediate"),
        ("full-jitter base=0s", "base: must be more than zero, or every retry would be immediate"),
        ("exponential base=1m max=1s", "max: 1s is below base, 1m"),
        ("decorrelated-jitter base=1m max=1s", "max: 1s is below base, 1m"),
        ("power-of-two cap=1s", "max: 1s is below base, 2s"),
    ],
)
def test_an_impossible_policy_is_refused(text: str, line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_backoff(text)
    assert str(refused.value) == line


@pytest.mark.parametrize(
    "text",
    [
        "exponential base=1s base=2s",
        "exponential 1s base=2s",
        "exponential factor=3",
        "exponential 1s 2s 3s 4s",
        "steps 1m cap=5m",
        "power-of-two base=1s",
        "full-jitter jitter=1s",
    ],
)
def test_arguments_that_do_not_fit_the_policy_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^backoff: '.*' does not fit [a-z-]+; write it like "):
        parse_backoff(text)


def test_a_custom_policy_is_used_unchanged() -> None:
    class Always:
        def delay(self, n: int, random: Random) -> timedelta:
            return timedelta(seconds=n)

    policy = Always()
    assert to_backoff(policy) is policy


@pytest.mark.parametrize("value", [5, timedelta(seconds=1), object()])
def test_anything_else_is_refused_as_a_policy(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^backoff: .* is not a policy; use one of exponential, "):
        to_backoff(value)  # type: ignore[arg-type]
