"""Timetables: the occurrences of an interval or a cron expression, and what to do about missed ones. All pure.

Intervals count from the Unix epoch, so that every process computes the same occurrences without coordination. A cron
expression follows the wall clock of its time zone. When that clock jumps, the rules are those of Debian's cron:

- A fixed time of day (neither minute nor hour begins with `*`) that a forward jump skips runs once, at the moment of
  the jump. A fixed time that a backward jump repeats runs once, the first time.
- If minute or hour begins with `*`, every moment that matches the wall clock is an occurrence: `*/15 * * * *` runs
  every 15 minutes through both jumps; skipped hours are skipped and repeated hours run again.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from holdfast.domain.duration import to_aware, to_text, to_timedelta
from holdfast.domain.errors import InvalidInput, shown

DEFAULT_GRACE = timedelta(minutes=1)
DEFAULT_MISSED_LIMIT = 100
MOST_COUNTED = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(days=366)
_LONGEST_TEXT = 200
# No zone changes its offset and changes it back within such a short time.
_STRIDE = timedelta(hours=12)
_MINUTES, _HOURS, _DAYS, _MONTHS, _WEEKDAYS = range(60), range(24), range(1, 32), range(1, 13), range(7)
_FIELDS = {"minute": _MINUTES, "hour": _HOURS, "day of month": _DAYS, "month": _MONTHS, "day of week": _WEEKDAYS}
_CLOCK_TIME = re.compile(r"(\d{1,2}):(\d\d) (.+)")
_DAY_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_DAY_WORDS = {"daily": "*", "weekdays": "1-5", "weekends": "0,6"} | {
    word: str(number) for number, name in enumerate(_DAY_NAMES) for word in (name, name[:3])
}
_EXAMPLES = 'write it like "every 2m", "03:17 daily", "08:00 weekdays", "09:30 monday" or "17 3 * * *"'


class Missed(StrEnum):
    """What to do with occurrences that were missed because no process was running."""

    SKIP = "skip"
    """Run only the newest occurrence, and only if it is less than a minute late."""
    ONCE = "once"
    """Run the newest occurrence, however late; drop older ones."""
    ALL = "all"
    """Run every occurrence, oldest first; above the limit, only the newest ones."""


class Timetable(Protocol):
    @property
    def text(self) -> str:
        """The canonical form for storage and comparison: `every 1m30s`, or a cron expression of five fields."""

    @property
    def zone(self) -> str: ...

    def next_after(self, moment: datetime) -> datetime:
        """The first occurrence after the moment, in UTC."""

    def newest(self, after: datetime, until: datetime, most: int) -> tuple[list[datetime], int]:
        """The newest `most` occurrences after `after` and up to `until`, oldest first, and how many there are in all.

        For a cron expression the count stops at MOST_COUNTED more than `most`, because there may be millions.
        """


@dataclass(frozen=True, slots=True)
class Due:
    """The occurrences to run now, oldest first; how many others were dropped; the occurrence to continue with.

    `dropped` is exact for an interval. For a cron expression, counting stops soon after MOST_COUNTED.
    """

    occurrences: tuple[datetime, ...]
    dropped: int
    next_occurrence: datetime


@dataclass(frozen=True, slots=True)
class _Interval:
    text: str
    zone: str
    length: timedelta

    def next_after(self, moment: datetime) -> datetime:
        return self._occurrence(self._passed(moment) + 1)

    def newest(self, after: datetime, until: datetime, most: int) -> tuple[list[datetime], int]:
        oldest, newest = self._passed(after) + 1, self._passed(until)
        return (
            [self._occurrence(number) for number in range(max(oldest, newest + 1 - most), newest + 1)],
            max(0, newest + 1 - oldest),
        )

    def _passed(self, moment: datetime) -> int:
        """The number of the last occurrence at or before the moment."""
        return (to_aware(moment, "moment") - _EPOCH) // self.length

    def _occurrence(self, number: int) -> datetime:
        return _EPOCH + number * self.length


@dataclass(frozen=True, slots=True)
class _Cron:
    """CronSim finds the matching times on a clock without a zone; we convert them to real time ourselves. With a zone
    that jumps at midnight or by less than an hour, CronSim misses occurrences, invents some or never returns."""

    text: str
    zone: str
    _place: ZoneInfo = field(compare=False, repr=False)
    _matching: CronSim = field(compare=False, repr=False)

    def next_after(self, moment: datetime) -> datetime:
        after = to_aware(moment, "moment")
        try:
            return self._next_fixed(after) if self._is_fixed else self._next_running(after)
        except (StopIteration, OverflowError, ValueError) as error:
            raise InvalidInput(f"timetable: {self.text!r} has no occurrence before the year 9999") from error

    def newest(self, after: datetime, until: datetime, most: int) -> tuple[list[datetime], int]:
        """Search back from `until` in growing steps, so that few surplus occurrences are computed."""
        occurrences: list[datetime] = []
        enough, end, reach = most + MOST_COUNTED, until, timedelta(hours=1)
        while after < end and len(occurrences) < enough:
            start = max(after, end - reach)
            occurrences = [*self._between(start, end), *occurrences]
            end, reach = start, reach * 2
        return occurrences[max(0, len(occurrences) - most) :], min(len(occurrences), enough)

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        occurrence = self.next_after(after)
        while occurrence <= until:
            yield occurrence
            occurrence = self.next_after(occurrence)

    @property
    def _is_fixed(self) -> bool:
        minute, hour, *_ = self.text.split()
        return not minute.startswith("*") and not hour.startswith("*")

    def _next_fixed(self, moment: datetime) -> datetime:
        wall = moment.astimezone(self._place).replace(tzinfo=None)
        while True:
            wall = self._match_after(wall)
            # Otherwise the first pass is over and this is the second pass of a repeated hour.
            if (occurrence := self._first_time(wall)) > moment:
                return occurrence

    def _next_running(self, moment: datetime) -> datetime:
        """Go from offset to offset: while the offset is constant, wall clock and real time run in parallel."""
        start, offset = moment, self._offset(moment)
        wall = (moment + offset).replace(tzinfo=None)
        while True:
            wall = self._match_after(wall)
            occurrence = wall.replace(tzinfo=UTC) - offset
            change = self._change(start, occurrence)
            if change is None:
                return occurrence
            start, offset = change, self._offset(change)
            # The moment of the change can be an occurrence itself.
            wall = (change + offset - _SECOND).replace(tzinfo=None)

    def _match_after(self, wall: datetime) -> datetime:
        matching = copy.copy(self._matching)
        matching.dt = wall.replace(microsecond=0, fold=0)
        return next(matching)

    def _first_time(self, wall: datetime) -> datetime:
        """When the clock first shows this time, or, if it never does, when the clock jumps over it."""
        by_old_offset, by_new_offset = (wall.replace(tzinfo=self._place, fold=fold).astimezone(UTC) for fold in (0, 1))
        if by_new_offset < by_old_offset:
            return self._change(by_new_offset, by_old_offset) or by_old_offset
        return by_old_offset

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self._place).utcoffset() or timedelta(0)

    def _change(self, after: datetime, until: datetime) -> datetime | None:
        """The first moment, to the second, at which the offset differs from the one at `after`."""
        offset, same = self._offset(after), after
        while same < until:
            other = min(same + _STRIDE, until)
            if self._offset(other) != offset:
                while other - same > _SECOND:
                    middle = same + (other - same) // 2
                    if self._offset(middle) == offset:
                        same = middle
                    else:
                        other = middle
                return other.replace(microsecond=0)
            same = other
        return None


def parse_timetable(text: str, zone: str = "UTC") -> Timetable:
    """`every 2m`, `17 3 * * *`, `03:17 daily`, `08:00 weekdays`, `09:30 monday,thursday`, `hourly`.

    Timetables are equal if they mean the same, no matter how they are written. Raises InvalidInput for invalid text.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"timetable: {shown(text)} is not text; {_EXAMPLES}")
    if len(text) > _LONGEST_TEXT:
        raise InvalidInput(f"timetable: {len(text):,} characters are over the limit of {_LONGEST_TEXT}; {_EXAMPLES}")
    if not isinstance(zone, str):
        raise InvalidInput(f'tz: {shown(zone)} is not text; write the name of a time zone, like "America/Santiago"')
    return _parsed(" ".join(text.lower().split()), zone)


def due_at(timetable: Timetable, next_occurrence: datetime, now: datetime, missed: Missed, limit: int) -> Due:
    """What is due at `now` if `next_occurrence` is the schedule's oldest occurrence that is not done.

    It counts as an occurrence even if the timetable no longer contains it, for example after the zone's rules changed.
    """
    if next_occurrence > now:
        return Due((), 0, next_occurrence)
    most = max(0, limit) if missed is Missed.ALL else 1
    occurrences, count = timetable.newest(next_occurrence, now, most)
    if len(occurrences) < most:
        occurrences = [next_occurrence, *occurrences]
    if missed is Missed.SKIP and now - occurrences[-1] >= DEFAULT_GRACE:
        occurrences = []
    dropped = count + 1 - len(occurrences)
    return Due(tuple(occurrences), dropped, timetable.next_after(now))


def in_place(
    timetable: Timetable, next_occurrence: datetime, last_occurrence: datetime | None, now: datetime
) -> datetime:
    """The occurrence to continue with: an earlier one if the clock was ahead when `next_occurrence` was computed.

    The last occurrence that ran does not run again. After a step back of less than a minute, nothing is moved, because
    the occurrences in between have already run.
    """
    if next_occurrence <= _coming(timetable, last_occurrence, now + DEFAULT_GRACE):
        return next_occurrence
    return _coming(timetable, last_occurrence, now)


def _coming(timetable: Timetable, last_occurrence: datetime | None, moment: datetime) -> datetime:
    occurrence = timetable.next_after(moment)
    return timetable.next_after(occurrence) if occurrence == last_occurrence else occurrence


@lru_cache(maxsize=1024)
def _parsed(text: str, zone: str) -> Timetable:
    place = _zone(zone)
    if text.startswith("every "):
        return _interval(text, zone)
    expression = _expression(text)
    matching = _matching(text, expression)
    return _Cron(_canonical(expression, matching), zone, place, matching)


def _zone(name: str) -> ZoneInfo:
    # "localtime" means a different zone on each machine.
    if name.lower() != "localtime":
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    known = {zone.lower(): zone for zone in available_timezones() if zone != "localtime"}
    example = known.get(name.strip().lower(), "America/Santiago")
    raise InvalidInput(f'tz: {name!r} is not the name of a time zone; write it like "{example}"')


def _interval(text: str, zone: str) -> _Interval:
    try:
        length = to_timedelta(text.removeprefix("every "), "timetable")
    except InvalidInput as error:
        raise InvalidInput(f"{error}, after the word every") from error
    if not SHORTEST <= length <= LONGEST:
        raise InvalidInput(f'timetable: {text!r} is not from 1s to 366d; write it like "every 90s" or "every 2m"')
    if length % timedelta(milliseconds=1):
        raise InvalidInput(f'timetable: {text!r} is not in whole milliseconds; write it like "every 90s"')
    return _Interval(f"every {to_text(length)}", zone, length)


def _expression(text: str) -> str:
    """Convert the text, in any of its forms, to the five fields of a cron expression."""
    if text == "hourly":
        return "0 * * * *"
    clock_time = _CLOCK_TIME.fullmatch(text)
    if clock_time is None:
        return text.upper()
    hour, minute, days = int(clock_time[1]), int(clock_time[2]), clock_time[3]
    if hour not in _HOURS or minute not in _MINUTES:
        raise InvalidInput(f'timetable: {text!r} has no time of day from 00:00 to 23:59; write it like "03:17 daily"')
    words = [word.strip() for word in days.split(",")]
    unknown = [word for word in words if word not in _DAY_WORDS]
    if unknown:
        raise InvalidInput(
            f'timetable: {text!r}: {unknown[0]!r} is not a day; write it like "03:17 daily" or "09:30 monday,thursday"'
        )
    weekdays = "*" if "daily" in words else ",".join(_DAY_WORDS[word] for word in words)
    return f"{minute} {hour} * * {weekdays}"


def _matching(text: str, expression: str) -> CronSim:
    fields = expression.split()
    if len(fields) != len(_FIELDS):
        hint = ' (for seconds, use "every 10s")' if len(fields) > len(_FIELDS) else ""
        raise InvalidInput(f"timetable: {text!r} does not have the five fields of a cron expression{hint}; {_EXAMPLES}")
    for written, (name, allowed) in zip(fields, _FIELDS.items(), strict=True):
        for step in re.findall(r"/(\d+)", written):
            if int(step) > len(allowed):
                raise InvalidInput(
                    f"timetable: {text!r}: {name}: a step of {step} is longer than the field; {_EXAMPLES}"
                )
    origin = datetime(2000, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    try:
        matching = CronSim(expression, origin)
        next(copy.copy(matching))
    except StopIteration:
        raise InvalidInput(f"timetable: {text!r} never occurs; {_EXAMPLES}") from None
    except CronSimError as error:
        # CronSim calls February 30 a bad day of month, although that day and that month are valid on their own.
        minute, hour, day, month, weekday = fields
        is_readable = all(
            _is_readable(part, origin) for part in (f"{minute} {hour} {day} * {weekday}", f"0 0 * {month} *")
        )
        problem = " never occurs" if is_readable else f": {str(error).lower()}"
        raise InvalidInput(f"timetable: {text!r}{problem}; {_EXAMPLES}") from error
    return matching


def _is_readable(expression: str, origin: datetime) -> bool:
    try:
        CronSim(expression, origin)
    except CronSimError:
        return False
    return True


def _canonical(expression: str, matching: CronSim) -> str:
    """The one spelling for each meaning. A leading `*` stays, because it decides what happens when the clock jumps, and
    whether day of month and day of week must both match or only one of them."""
    minute, hour, day, month, weekday = expression.split()
    weekdays = {item % 7 if isinstance(item, int) else (item[0] % 7, item[1]) for item in matching.weekdays}
    return " ".join(
        [
            _field(minute, set(matching.minutes), _MINUTES, is_whole_a_star=True),
            _field(hour, set(matching.hours), _HOURS, is_whole_a_star=True),
            _field(day, set(matching.days), _DAYS, is_whole_a_star=False),
            _field(month, set(matching.months), _MONTHS, is_whole_a_star=True),
            _field(weekday, weekdays, _WEEKDAYS, is_whole_a_star=False),
        ]
    )


def _field(written: str, values: set[int | tuple[int, int]], allowed: range, *, is_whole_a_star: bool) -> str:
    is_whole = values >= set(allowed)
    if is_whole and (is_whole_a_star or written.startswith("*")):
        return "*"
    star = ""
    if written.startswith("*"):
        step = int(written.split(",")[0].removeprefix("*/"))
        star = f"*/{step}"
        values = values - set(allowed[::step])
    numbers = sorted(value for value in values if isinstance(value, int) and value >= 0)
    last = {CronSim.LAST: "L", CronSim.LAST_WEEKDAY: "LW"}
    special = [last[value] for value in values if isinstance(value, int) and value < 0]
    special += [
        f"{value[0]}L" if value[1] == CronSim.LAST else f"{value[0]}#{value[1]}"
        for value in values
        if isinstance(value, tuple)
    ]
    return ",".join(part for part in (star, *_ranges(numbers), *sorted(special)) if part)


def _ranges(numbers: list[int]) -> Iterator[str]:
    """Write 1, 2, 3, 5 as `1-3` and `5`."""
    start = 0
    for end, number in enumerate(numbers):
        if end + 1 < len(numbers) and numbers[end + 1] == number + 1:
            continue
        run = numbers[start : end + 1]
        if len(run) > 2:
            yield f"{run[0]}-{run[-1]}"
        else:
            yield from map(str, run)
        start = end + 1
