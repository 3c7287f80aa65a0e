"""Which occurrences of a schedule run now, as the store has the schedule."""

from datetime import datetime

from holdfast.domain.cron import Due, Missed, due_at, parse_timetable
from holdfast.domain.errors import InvalidInput
from holdfast.log import get_logger
from holdfast.store.schedules import Schedule

log = get_logger("holdfast.schedules")


def due_occurrences(schedule: Schedule, now: datetime) -> Due:
    """A paused schedule has none, and stays where it is."""
    if schedule.paused:
        return Due((), 0, schedule.next_occurrence)
    timetable = parse_timetable(schedule.timetable, schedule.zone)
    return due_at(timetable, schedule.next_occurrence, now, schedule.missed, schedule.missed_limit)


class Unreadable:
    """Schedules that cannot be read. Each is told once: it stays so until somebody changes it, or this process is a
    newer one."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, str]] = set()

    def tell(self, schedule: Schedule, error: InvalidInput) -> str:
        """What a report says about it."""
        key = (schedule.name, schedule.timetable, schedule.zone)
        if key not in self._told:
            self._told.add(key)
            log.error("schedule cannot be read", schedule=schedule.name, error=str(error))
        return f"schedule {schedule.name!r}: {error}"


def log_dropped(schedule: Schedule, dropped: int) -> None:
    """A policy that leaves occurrences out does what it is there for; one that wants them all has come to its limit."""
    tell = log.warning if schedule.missed is Missed.ALL else log.info
    tell(
        "occurrences were missed and are skipped",
        schedule=schedule.name,
        skipped=dropped,
        oldest=schedule.next_occurrence.isoformat(),
        policy=schedule.missed.value,
    )
