"""Which occurrences of a schedule run now, according to the schedule in the store."""

from datetime import datetime

from holdfast.domain.cron import Due, Missed, due_at, in_place, parse_timetable
from holdfast.domain.errors import InvalidInput
from holdfast.logs.records import get_logger
from holdfast.store.schedules import Schedule

log = get_logger("holdfast.schedules")


def due_occurrences(schedule: Schedule, now: datetime) -> Due:
    """The occurrences that are due. A paused schedule has none and stays where it is."""
    if schedule.paused:
        return Due((), 0, schedule.next_occurrence)
    timetable = parse_timetable(schedule.timetable, schedule.zone)
    return due_at(timetable, schedule.next_occurrence, now, schedule.missed, schedule.missed_limit)


def occurrence_in_place(schedule: Schedule, now: datetime) -> datetime:
    """The occurrence to continue with. For a paused or unreadable schedule, the current one is kept."""
    if schedule.paused:
        return schedule.next_occurrence
    try:
        timetable = parse_timetable(schedule.timetable, schedule.zone)
        return in_place(timetable, schedule.next_occurrence, schedule.last_occurrence, now)
    except InvalidInput:
        return schedule.next_occurrence


class Unreadable:
    """Schedules that cannot be read. Each is logged once, because it stays unreadable until it is changed or a newer
    release runs."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, str]] = set()

    def tell(self, schedule: Schedule, error: InvalidInput) -> str:
        """Return the text for a report; log it the first time."""
        key = (schedule.name, schedule.timetable, schedule.zone)
        if key not in self._told:
            self._told.add(key)
            log.error("schedule cannot be read", schedule=schedule.name, error=str(error))
        return f"schedule {schedule.name!r}: {error}"


def log_dropped(schedule: Schedule, dropped: int) -> None:
    """Log skipped occurrences. This is expected unless the policy is to run all: then its limit was reached."""
    tell = log.warning if schedule.missed is Missed.ALL else log.info
    tell(
        "occurrences were missed and are skipped",
        schedule=schedule.name,
        skipped=dropped,
        oldest=schedule.next_occurrence.isoformat(),
        policy=schedule.missed.value,
    )
