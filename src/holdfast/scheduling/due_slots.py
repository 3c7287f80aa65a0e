"""Which slots of a schedule run now, as the store has the schedule."""

from datetime import datetime

from holdfast.domain.cron import Missed, Plan, parse_timetable, plan
from holdfast.domain.errors import InvalidInput
from holdfast.log import get_logger
from holdfast.store.schedules import Schedule

log = get_logger("holdfast.schedules")


def slots_to_run(schedule: Schedule, now: datetime) -> Plan:
    """A paused schedule has none, and stays where it is."""
    if schedule.paused:
        return Plan((), 0, schedule.next_slot)
    timetable = parse_timetable(schedule.timetable, schedule.zone)
    return plan(timetable, schedule.next_slot, now, schedule.missed, schedule.missed_limit)


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
    """A policy that leaves slots out does what it is there for; one that wants them all has come to its limit."""
    tell = log.warning if schedule.missed is Missed.ALL else log.info
    tell(
        "slots were missed and are skipped",
        schedule=schedule.name,
        skipped=dropped,
        oldest=schedule.next_slot.isoformat(),
        policy=schedule.missed.value,
    )
