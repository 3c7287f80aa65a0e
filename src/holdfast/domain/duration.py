"""Durations as people write them: "90s", "5m", "1h30m", "500ms", or a timedelta.

A bare number has no unit, so Holdfast rejects it everywhere.
"""

import re
from datetime import UTC, datetime, timedelta

from holdfast.domain.errors import InvalidInput, shown

Duration = timedelta | str

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_LONGEST = timedelta(days=36_500)
# The driver sends Python's very last day as infinity, which no store can do arithmetic with.
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


def to_timedelta(value: object, name: str = "duration") -> timedelta:
    """Return a timedelta of zero or more. Raises InvalidInput, naming the setting, for anything else."""
    match value:
        case timedelta():
            duration = value
        case str():
            duration = _parse(value, name)
        case _:
            raise InvalidInput(
                f'{name}: {shown(value)} is not a duration; write it like "90s" or "5m", or pass a timedelta'
            )
    if duration < timedelta(0):
        raise InvalidInput(f"{name}: {value!r} is negative; a duration is zero or more")
    if duration > _LONGEST:
        raise InvalidInput(f"{name}: {value!r} is longer than a hundred years")
    return duration


def to_aware(value: object, name: str) -> datetime:
    """Return an aware datetime in UTC. Raises InvalidInput, naming the setting, for anything else."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name}: {shown(value)} is not a datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(f"{name}: {value.isoformat()} has no time zone; use datetime.now(UTC) or add tzinfo")
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = datetime.min.replace(tzinfo=UTC) if value.year == 1 else _LATEST
    if moment >= _LATEST:
        raise InvalidInput(f"{name}: {value.isoformat()} is not before the year 9999")
    return moment


def _parse(text: str, name: str) -> timedelta:
    total, end = timedelta(0), 0
    stripped = text.strip()
    sign = -1 if stripped.startswith("-") else 1
    stripped = stripped.removeprefix("-")
    try:
        while end < len(stripped):
            part = _PART.match(stripped, end)
            if part is None:
                break
            total += float(part[1]) * _UNITS[part[2]]
            end = part.end()
    except OverflowError:
        raise InvalidInput(f"{name}: {text!r} is longer than a hundred years") from None
    if not stripped or end < len(stripped):
        raise InvalidInput(f'{name}: {text!r} is not a duration; write it like "90s", "5m" or "1h30m"')
    return sign * total


def to_text(duration: timedelta) -> str:
    """The shortest text that `to_timedelta` can read back, to the millisecond."""
    left = round(duration / timedelta(milliseconds=1))
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, round(_UNITS[unit] / timedelta(milliseconds=1)))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def rough(length: timedelta) -> str:
    """A length of time in its largest unit, or in its two largest units where one would be too coarse."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            part = int(rest // smaller_size)
            return f"{whole:.0f}{unit}{part}{smaller}" if whole < 10 and part else f"{whole:.0f}{unit}"
    return f"{seconds:.0f}s"
