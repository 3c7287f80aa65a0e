"""Timetables: the slots of an interval or a cron expression, and what to do about slots that were missed. All pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

DEFAULT_GRACE = timedelta(minutes=1)
DEFAULT_MISSED_LIMIT = 100


class Missed(StrEnum):
    """What becomes of slots that nobody was there for."""

    SKIP = "skip"
    """Only the newest slot runs, and only if it is less than a minute late."""
    ONCE = "once"
    """The newest slot runs, however late; older ones are dropped."""
    ALL = "all"
    """Every slot runs, oldest first; of more than the limit, the newest."""


class Timetable(Protocol):
    text: str
    """In the form in which it is stored and compared: `every 90s`, or a cron expression of five fields."""
    zone: str

    def next_after(self, moment: datetime) -> datetime:
        """The first slot after the moment, in UTC."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The slots to run now, oldest first; how many others were dropped; the slot to go on with."""

    slots: tuple[datetime, ...]
    dropped: int
    next_slot: datetime


def parse_timetable(text: str, zone: str = "UTC") -> Timetable:
    """`every 2m`, `17 3 * * *`, `03:17 daily`, `08:00 weekdays`, `09:30 monday`; InvalidInput says what is wrong."""
    raise NotImplementedError


def plan(timetable: Timetable, next_slot: datetime, now: datetime, missed: Missed, limit: int) -> Plan:
    """What to do at `now` about a schedule whose oldest slot that is not done is `next_slot` (which is due)."""
    raise NotImplementedError
