"""When a receiver wants the next attempt: its header Retry-After."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST = timedelta(hours=1)


def delay_of(headers: Mapping[str, str]) -> timedelta | None:
    """The delay that the receiver asks for, at most an hour, or None if it asks for none."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        # As a float, because Python refuses to convert very long texts to an int.
        delay = timedelta(seconds=min(float(text), LONGEST.total_seconds()))
    else:
        at = _date(text)
        # Compared with the receiver's own clock, if it says what it shows.
        now = _date(headers.get("date", "")) or datetime.now(UTC)
        delay = timedelta(0) if at is None else min(at - now, LONGEST)
    return delay if delay > timedelta(0) else None


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
