"""Computes the occurrences of a cron expression by reading the wall clock minute by minute.

It shares only the rule with cron.py: a fixed time of day runs once, even if the clock skips or repeats it. An
expression whose minute or hour starts with a star follows the clock.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import NamedTuple
from zoneinfo import ZoneInfo


class Minute(NamedTuple):
    """A moment, and what the wall clock shows then, without a zone."""

    moment: datetime
    wall: datetime
    left_out: tuple[datetime, ...]
    """The minutes that the clock skipped since the minute before, if it jumped forward."""
    is_shown_again: bool


_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
RANGES = (range(60), range(24), range(1, 32), range(1, 13), range(7))


def minutes(zone: ZoneInfo, start: datetime, number: int) -> list[Minute]:
    """Consecutive minutes. What the clock showed before the first one is unknown."""
    found: list[Minute] = []
    seen: set[datetime] = set()
    for moment in (start + count * _MINUTE for count in range(number)):
        wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
        jump = wall - found[-1].wall if found else _MINUTE
        left_out = () if jump <= _MINUTE else tuple(wall - count * _MINUTE for count in range(1, jump // _MINUTE))
        found.append(Minute(moment, wall, left_out, wall in seen))
        seen.add(wall)
    return found


def occurrences(expression: str, among: Iterable[Minute]) -> Iterator[datetime]:
    fields = [numbers(text, allowed) for text, allowed in zip(expression.split(), RANGES, strict=True)]
    if any(text.startswith("*") for text in expression.split()[:2]):
        return (minute.moment for minute in among if matches(fields, minute.wall))
    return (
        minute.moment
        for minute in among
        if not minute.is_shown_again
        and (matches(fields, minute.wall) or any(matches(fields, wall) for wall in minute.left_out))
    )


class YearsOfOccurrences:
    """Computes the occurrences of several years in one zone. Days without a clock change are computed once per weekday.

    For expressions that restrict neither the day of the month nor the month.
    """

    def __init__(self, zone: str, first_day: datetime, days: int) -> None:
        self._zone = ZoneInfo(zone)
        self._days = [first_day.astimezone(UTC) + number * _DAY for number in range(days)]
        # One offset per hour is enough: no clock is changed back within the hour.
        hours = [self._offset(self._days[0] - _DAY + number * _HOUR) for number in range((days + 2) * 24 + 1)]
        self._is_calm = {
            day: len(set(hours[24 * number : 24 * number + 49])) == 1 for number, day in enumerate(self._days)
        }
        self._calm = [(alike, self._minutes(alike[:1])) for alike in self._calm_days()]
        self._restless = [minute for days in self._restless_runs() for minute in self._minutes(days)]

    def occurrences(self, expression: str) -> list[datetime]:
        found = list(occurrences(expression, self._restless))
        for (day, *alike), looked_at in self._calm:
            usual = list(occurrences(expression, looked_at))
            found += usual
            found += [occurrence + (other - day) for other in alike for occurrence in usual]
        return sorted(found)

    def _calm_days(self) -> Iterable[list[datetime]]:
        alike: dict[tuple[timedelta, int], list[datetime]] = {}
        for day in self._days:
            if self._is_calm[day]:
                alike.setdefault((self._offset(day), day.weekday()), []).append(day)
        return alike.values()

    def _restless_runs(self) -> Iterator[list[datetime]]:
        for is_calm, days in groupby(self._days, self._is_calm.__getitem__):
            if not is_calm:
                yield list(days)

    def _minutes(self, days: list[datetime]) -> list[Minute]:
        """Start one day early, because the clock may repeat what it showed then."""
        day = _DAY // _MINUTE
        return minutes(self._zone, days[0] - _DAY, (len(days) + 1) * day)[day:]

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._zone).utcoffset() or timedelta(0)


def numbers(text: str, allowed: range) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        chosen = allowed if span == "*" else range(int(first), int(last or first) + 1)
        found.update(chosen[:: int(step or 1)])
    return found


def matches(fields: list[set[int]], wall: datetime) -> bool:
    """Require both days to match, which is right if at least one of them is a star."""
    minute, hour, day, month, weekday = fields
    return (
        wall.minute in minute
        and wall.hour in hour
        and wall.day in day
        and wall.month in month
        and wall.isoweekday() % 7 in weekday
    )
