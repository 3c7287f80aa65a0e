"""Cron expressions in weeks with a clock change, against an oracle that walks through them minute by minute."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.cron import parse_timetable
from holdfast_lab.faults.oracle import RANGES, Minute, matches, minutes, numbers, occurrences

# The day of the jump on the wall clock of the zone.
JUMPS = [
    ("America/Santiago", "2025-09-07"),  # forward at midnight
    ("America/Santiago", "2025-04-06"),
    ("Europe/Berlin", "2025-03-30"),
    ("Europe/Berlin", "2025-10-26"),
    ("America/New_York", "2025-03-09"),
    ("America/New_York", "2025-11-02"),
    ("Australia/Lord_Howe", "2025-10-05"),  # by half an hour
    ("Australia/Lord_Howe", "2025-04-06"),
    ("Africa/Casablanca", "2025-02-23"),  # back for Ramadan
    ("Africa/Casablanca", "2025-04-06"),
    ("Asia/Tehran", "2022-03-22"),
    ("Asia/Tehran", "2022-09-21"),
    ("America/St_Johns", "2010-03-14"),  # at one minute past midnight
    ("America/St_Johns", "2010-11-07"),
    ("America/St_Johns", "2025-03-09"),
    ("Africa/Cairo", "2025-10-31"),
    ("Antarctica/Troll", "2025-03-30"),  # by two hours
    ("Antarctica/Troll", "2025-10-26"),
    ("Asia/Pyongyang", "2018-05-05"),  # to a new standard time, by half an hour
    ("Pacific/Apia", "2011-12-30"),  # over a whole day
]
STEADY = [("UTC", "2025-03-30"), ("Asia/Kolkata", "2025-03-30")]

FIXED = [
    "17 3 * * *",
    "30 2 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "0,30 1,2 * * *",
    "10-50/20 0-3,23 * * *",
    "45 1 * * 0",
    "0 12 * * 1-5",
    "30 1,23 * * 0,5,6",
    "15 2 6-7,30 * *",
]
RUNNING = [
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "7,37 * * * *",
    "*/10 2 * * *",
    "*/7 0-2,23 * * *",
    "15 */2 * * *",
    "* 0 * * 0",
    "*/20 * 6,30 * *",
]


@pytest.mark.parametrize("expression", FIXED + RUNNING)
@pytest.mark.parametrize(("zone", "day"), JUMPS + STEADY)
def test_every_occurrence_of_the_week_matches_the_oracle(zone: str, day: str, expression: str) -> None:
    first, *others = week(zone, day)
    timetable = parse_timetable(expression, zone)

    found, occurrence = [], timetable.next_after(first.moment)
    while occurrence <= others[-1].moment:
        found.append(occurrence)
        occurrence = timetable.next_after(occurrence)

    assert found == list(occurrences(expression, others))


@cache
def week(zone: str, day: str) -> list[Minute]:
    """Each minute from three days before the jump to four days after it."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=3)
    found = minutes(ZoneInfo(zone), start, 7 * 24 * 60)
    offsets = {minute.moment.replace(tzinfo=None) - minute.wall for minute in found}
    assert (len(offsets) > 1) == ((zone, day) in JUMPS)
    return found


@given(
    st.sampled_from(JUMPS + STEADY),
    st.sampled_from(FIXED + RUNNING),
    st.timedeltas(timedelta(days=-2), timedelta(days=3)),
    st.floats(0, 1, exclude_max=True),
)
def test_the_next_occurrence_does_not_depend_on_the_starting_moment(
    jump: tuple[str, str], expression: str, distance: timedelta, part: float
) -> None:
    zone, day = jump
    timetable = parse_timetable(expression, zone)
    moment = datetime.fromisoformat(day).replace(tzinfo=UTC) + distance
    occurrence = timetable.next_after(moment)
    assert occurrence > moment
    between = moment + part * (occurrence - moment)
    assert timetable.next_after(min(between, occurrence - timedelta(microseconds=1))) == occurrence


# "localtime" is a different zone on each machine, so schedules refuse it.
NAMED_ZONES = st.timezones().filter(lambda zone: zone.key != "localtime")


@given(NAMED_ZONES, st.datetimes(datetime(1975, 1, 1), datetime(2060, 1, 1)), st.sampled_from(FIXED + RUNNING))  # noqa: DTZ001
def test_in_every_zone_and_year_the_clock_shows_a_matching_time(zone: ZoneInfo, moment: datetime, text: str) -> None:
    occurrence = parse_timetable(text, zone.key).next_after(moment.replace(tzinfo=UTC))
    wall = occurrence.astimezone(zone)
    is_after_a_jump = (occurrence - timedelta(seconds=1)).astimezone(zone).utcoffset() != wall.utcoffset()
    fields = [numbers(part, allowed) for part, allowed in zip(text.split(), RANGES, strict=True)]
    assert occurrence.tzinfo is UTC
    assert matches(fields, wall) or is_after_a_jump


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # Forward at 02:00: 02:30 is skipped, so it runs at the jump, at 03:00.
        ("02:30 daily", "Europe/Berlin", "2025-03-29T12:00+01:00", "2025-03-30T03:00+02:00 2025-03-31T02:30+02:00"),
        # All skipped times of day make one occurrence, merged with one that falls on the jump anyway.
        ("0,30 2,3 * * *", "Europe/Berlin", "2025-03-30T01:00+01:00", "2025-03-30T03:00+02:00 2025-03-30T03:30+02:00"),
        # Back from 03:00: 02:30 happens twice and runs the first time.
        ("02:30 daily", "Europe/Berlin", "2025-10-25T12:00+02:00", "2025-10-26T02:30+02:00 2025-10-27T02:30+01:00"),
        ("02:30 daily", "Europe/Berlin", "2025-10-26T02:10+01:00", "2025-10-27T02:30+01:00"),
        # Every hour stays every hour.
        ("hourly", "Europe/Berlin", "2025-03-30T00:30+01:00", "2025-03-30T01:00+01:00 2025-03-30T03:00+02:00"),
        ("hourly", "Europe/Berlin", "2025-10-26T01:30+02:00", "2025-10-26T02:00+02:00 2025-10-26T02:00+01:00"),
        # A skipped hour has no occurrences; a repeated hour has them twice.
        ("*/30 2 * * *", "Europe/Berlin", "2025-03-30T00:00+01:00", "2025-03-31T02:00+02:00"),
        ("*/30 2 * * *", "Europe/Berlin", "2025-10-26T02:00+02:00", "2025-10-26T02:30+02:00 2025-10-26T02:00+01:00"),
        # Midnight itself is skipped.
        ("00:00 daily", "America/Santiago", "2025-09-06T12:00-04:00", "2025-09-07T01:00-03:00 2025-09-08T00:00-03:00"),
        # A day that did not exist.
        ("12:00 friday", "Pacific/Apia", "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00 2012-01-06T12:00+14:00"),
    ],
)
def test_examples(text: str, zone: str, after: str, expected: str) -> None:
    timetable, moment, found = parse_timetable(text, zone), datetime.fromisoformat(after), []
    for _ in expected.split():
        moment = timetable.next_after(moment)
        found.append(moment.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes"))
    assert found == expected.split()
