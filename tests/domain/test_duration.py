"""Durations and times as people write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.duration import to_aware, to_text, to_timedelta
from holdfast.domain.errors import Cancel, InvalidInput, Permanent, Retryable, Snooze
from tests.domain.answers import answer

LONGEST = timedelta(days=36_500)


@given(st.integers(0, LONGEST // timedelta(milliseconds=1)))
def test_a_duration_written_as_text_reads_back_equal(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert to_timedelta(to_text(duration)) == duration


@given(st.text(alphabet="0123456789. msh-d"))
def test_any_text_is_a_duration_or_is_refused_in_one_line(text: str) -> None:
    duration, line = answer(lambda: to_timedelta(text, "lease"))
    if duration is None:
        assert line.startswith(f"lease: {text!r} is ")
        assert "\n" not in line
    else:
        assert timedelta(0) <= duration <= LONGEST


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0s", timedelta(0)),
        ("500ms", timedelta(milliseconds=500)),
        ("90s", timedelta(seconds=90)),
        ("1.5h", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        (" 1 h 30 m ", timedelta(minutes=90)),
        ("2d1ms", timedelta(days=2, milliseconds=1)),
        ("0.001ms", timedelta(microseconds=1)),
        ("-0s", timedelta(0)),
        ("36500d", LONGEST),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, duration: timedelta) -> None:
    assert to_timedelta(text) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=1500), "1s500ms"),
        (timedelta(hours=25), "1d1h"),
        (timedelta(minutes=90), "1h30m"),
    ],
)
def test_durations_are_shown_in_their_shortest_form(duration: timedelta, text: str) -> None:
    assert to_text(duration) == text


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (5, 'lease: 5 is not a duration; write it like "90s" or "5m", or pass a timedelta'),
        (None, 'lease: None is not a duration; write it like "90s" or "5m", or pass a timedelta'),
        ("5", "lease: '5' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("", "lease: '' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("5x", "lease: '5x' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("5s!", "lease: '5s!' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("1e3s", "lease: '1e3s' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("--5s", "lease: '--5s' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("-", "lease: '-' is not a duration; write it like \"90s\", \"5m\" or \"1h30m\""),
        ("-5s", "lease: '-5s' is negative; a duration is zero or more"),
        ("999d" * 40, f"lease: {'999d' * 40!r} is longer than a hundred years"),
        ("9" * 400 + "s", f"lease: {'9' * 400 + 's'!r} is longer than a hundred years"),
        (timedelta(-1), "lease: datetime.timedelta(days=-1) is negative; a duration is zero or more"),
        (timedelta.max, f"lease: {timedelta.max!r} is longer than a hundred years"),
    ],
)  # fmt: skip
def test_an_invalid_duration_is_refused(value: object, line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        to_timedelta(value, "lease")
    assert str(refused.value) == line


@given(st.datetimes(timezones=st.timezones()))
def test_a_time_becomes_the_same_moment_in_utc_or_is_refused(moment: datetime) -> None:
    found, line = answer(lambda: to_aware(moment, "run_at"))
    if found is None:
        assert line == f"run_at: {moment.isoformat()} is not before the year 9999"
        assert moment.year >= 9998
    else:
        assert found.tzinfo is UTC
        # Not `==`: in Python, a time repeated at the end of daylight saving time equals no time in another zone.
        assert found.timestamp() == moment.timestamp() or moment.year == 1


def test_the_first_and_last_moments_of_python_do_not_overflow() -> None:
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    assert to_aware(datetime.min.replace(tzinfo=east), "at") == datetime.min.replace(tzinfo=UTC)
    for latest in (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=west)):
        with pytest.raises(InvalidInput, match="is not before the year 9999"):
            to_aware(latest, "at")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("2030-01-01", "run_at: '2030-01-01' is not a datetime"),
        (5, "run_at: 5 is not a datetime"),
        (
            datetime(2030, 1, 1),  # noqa: DTZ001
            "run_at: 2030-01-01T00:00:00 has no time zone; use datetime.now(UTC) or add tzinfo",
        ),
    ],
)
def test_an_invalid_time_is_refused(value: object, line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        to_aware(value, "run_at")
    assert str(refused.value) == line


def test_signals_carry_their_code_message_and_time() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert (Retryable("try later").after, Retryable().code, str(Retryable())) == (None, "ERROR", "ERROR")
    assert (Retryable(after="5m").after, Retryable(at=at).at) == (timedelta(minutes=5), at)
    assert (Snooze("5m").after, Snooze(until=at).until) == (timedelta(minutes=5), at)
    assert (Permanent("NO_SUCH").code, str(Permanent("NO_SUCH")), str(Permanent("X", "gone"))) == (
        "NO_SUCH",
        "NO_SUCH",
        "gone",
    )
    assert str(Cancel()) == "canceled by its handler"


def test_a_signal_refuses_two_times_and_a_snooze_requires_one() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidInput, match=r"^give a duration or a time, not both$"):
        Retryable(after="5m", at=at)
    with pytest.raises(InvalidInput, match=r"^give a duration or a time, not both$"):
        Snooze("5m", until=at)
    with pytest.raises(InvalidInput, match=r"^give a duration, as in Snooze"):
        Snooze()
