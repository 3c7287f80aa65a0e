"""Cron expressions in weeks in which the clock jumps, against an oracle that walks through them minute by minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cron import parse_timetable

MINUTE = timedelta(minutes=1)

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
def test_every_slot_of_the_week_is_the_oracle_s(zone: str, day: str, expression: str) -> None:
    walls = week(zone, day)
    timetable = parse_timetable(expression, zone)

    found, slot = [], timetable.next_after(walls[0][0])
    while slot <= walls[-1][0]:
        found.append(slot)
        slot = timetable.next_after(slot)

    assert found == list(oracle(expression, walls))


@cache
def week(zone: str, day: str) -> list[tuple[datetime, datetime]]:
    """Each minute from three days before the jump to four days after it, and what the clock on the wall shows then."""
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=3)
    moments = [start + number * MINUTE for number in range(7 * 24 * 60)]
    walls = [moment.astimezone(ZoneInfo(zone)) for moment in moments]
    is_jumping = len({wall.utcoffset() for wall in walls}) > 1
    assert is_jumping == ((zone, day) in JUMPS)
    return list(zip(moments, (wall.replace(tzinfo=None, fold=0) for wall in walls), strict=True))


def oracle(expression: str, walls: list[tuple[datetime, datetime]]) -> Iterator[datetime]:
    fields = [numbers(text, allowed) for text, allowed in zip(expression.split(), FIELD_RANGES, strict=True)]
    follows_the_clock = any(text.startswith("*") for text in expression.split()[:2])
    seen: set[datetime] = set()
    for (_, shown_before), (moment, shown) in pairwise(walls):
        seen.add(shown_before)
        if follows_the_clock:
            if matches(fields, shown):
                yield moment
        elif shown not in seen and any(matches(fields, wall) for wall in (*left_out(shown_before, shown), shown)):
            yield moment


FIELD_RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(7))


def numbers(text: str, allowed: range) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        chosen = allowed if span == "*" else range(int(first), int(last or first) + 1)
        found.update(chosen[:: int(step or 1)])
    return found


def matches(fields: list[set[int]], wall: datetime) -> bool:
    """Both days must match, which is right as long as one of the two is a star."""
    minute, hour, day, month, weekday = fields
    return (
        wall.minute in minute
        and wall.hour in hour
        and wall.day in day
        and wall.month in month
        and wall.isoweekday() % 7 in weekday
    )


def left_out(shown_before: datetime, shown: datetime) -> list[datetime]:
    """What the clock would have shown in between, had it not jumped forward."""
    return [shown_before + number * MINUTE for number in range(1, (shown - shown_before) // MINUTE)]


@given(
    st.sampled_from(JUMPS + STEADY),
    st.sampled_from(FIXED + RUNNING),
    st.timedeltas(timedelta(days=-2), timedelta(days=3)),
    st.floats(0, 1, exclude_max=True),
)
def test_the_next_slot_is_the_same_from_wherever_one_starts(
    jump: tuple[str, str], expression: str, distance: timedelta, part: float
) -> None:
    zone, day = jump
    timetable = parse_timetable(expression, zone)
    moment = datetime.fromisoformat(day).replace(tzinfo=UTC) + distance
    slot = timetable.next_after(moment)
    assert slot > moment
    between = moment + part * (slot - moment)
    assert timetable.next_after(min(between, slot - timedelta(microseconds=1))) == slot


@given(st.timezones(), st.datetimes(datetime(1975, 1, 1), datetime(2060, 1, 1)), st.sampled_from(FIXED + RUNNING))  # noqa: DTZ001
def test_in_every_zone_and_year_the_clock_shows_a_matching_time(zone: ZoneInfo, moment: datetime, text: str) -> None:
    slot = parse_timetable(text, zone.key).next_after(moment.replace(tzinfo=UTC))
    wall = slot.astimezone(zone)
    is_after_a_jump = (slot - timedelta(seconds=1)).astimezone(zone).utcoffset() != wall.utcoffset()
    fields = [numbers(part, allowed) for part, allowed in zip(text.split(), FIELD_RANGES, strict=True)]
    assert slot.tzinfo is UTC
    assert matches(fields, wall) or is_after_a_jump


@pytest.mark.parametrize(
    ("text", "zone", "after", "slots"),
    [
        # Forward at 02:00: 02:30 is left out, so it runs at the jump, which is 03:00.
        ("02:30 daily", "Europe/Berlin", "2025-03-29T12:00+01:00", "2025-03-30T03:00+02:00 2025-03-31T02:30+02:00"),
        # Times of day that are left out make one slot, together with one that is there at the jump anyway.
        ("0,30 2,3 * * *", "Europe/Berlin", "2025-03-30T01:00+01:00", "2025-03-30T03:00+02:00 2025-03-30T03:30+02:00"),
        # Back from 03:00: 02:30 comes twice and runs the first time.
        ("02:30 daily", "Europe/Berlin", "2025-10-25T12:00+02:00", "2025-10-26T02:30+02:00 2025-10-27T02:30+01:00"),
        ("02:30 daily", "Europe/Berlin", "2025-10-26T02:10+01:00", "2025-10-27T02:30+01:00"),
        # Every hour stays every hour.
        ("hourly", "Europe/Berlin", "2025-03-30T00:30+01:00", "2025-03-30T01:00+01:00 2025-03-30T03:00+02:00"),
        ("hourly", "Europe/Berlin", "2025-10-26T01:30+02:00", "2025-10-26T02:00+02:00 2025-10-26T02:00+01:00"),
        # An hour that is left out has no slots, one that is repeated has them twice.
        ("*/30 2 * * *", "Europe/Berlin", "2025-03-30T00:00+01:00", "2025-03-31T02:00+02:00"),
        ("*/30 2 * * *", "Europe/Berlin", "2025-10-26T02:00+02:00", "2025-10-26T02:30+02:00 2025-10-26T02:00+01:00"),
        # Midnight itself is left out.
        ("00:00 daily", "America/Santiago", "2025-09-06T12:00-04:00", "2025-09-07T01:00-03:00 2025-09-08T00:00-03:00"),
        # A day that never was.
        ("12:00 friday", "Pacific/Apia", "2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00 2012-01-06T12:00+14:00"),
    ],
)
def test_examples(text: str, zone: str, after: str, slots: str) -> None:
    timetable, moment, found = parse_timetable(text, zone), datetime.fromisoformat(after), []
    for _ in slots.split():
        moment = timetable.next_after(moment)
        found.append(moment.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes"))
    assert found == slots.split()
