"""The job schedules as a runner: makes one job per slot, in the transaction that moves the schedule on."""

from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.cron import Plan
from holdfast.errors import InvalidInput
from holdfast.job import NewJob
from holdfast.json_text import Json, decode, encode
from holdfast.log import get_logger
from holdfast.runtime.budget import Budget
from holdfast.runtime.runner import RunnerReport
from holdfast.runtime.schedule_board import ScheduleBoard
from holdfast.runtime.slots import log_dropped, slots_to_run
from holdfast.store.schedules import JobTemplate, NewRun, Schedule, ScheduleStore

log = get_logger("holdfast.schedules")

SCHEDULES = "schedules"
SCHEDULE_HEADER = "holdfast.schedule"
SLOT_HEADER = "holdfast.slot"
"""The slot in UTC, ISO 8601. A job that was asked for with run now has none."""

_LISTED_JOBS = 100


class JobSchedules:
    """Which slots run is decided by what the store has of the schedule, not by this process's code."""

    def __init__(self, board: ScheduleBoard, schedules: ScheduleStore, replica: str) -> None:
        self.on_wake: Callable[[], None] = lambda: None
        self._board = board
        self._schedules = schedules
        self._replica = replica
        self._is_stopping = False
        self._unreadable: set[tuple[str, str, str]] = set()

    @property
    def name(self) -> str:
        return SCHEDULES

    def due_in(self) -> float:
        return 0.0 if self._board.due_jobs() else self._board.look_in()

    def wake(self) -> None:
        self._board.look_soon()

    def stop(self) -> None:
        self._is_stopping = True

    async def close(self, seconds: float) -> RunnerReport | None:  # noqa: ARG002 - nothing of it runs on
        return None

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:  # noqa: ARG002 - a pass is its end
        report = RunnerReport(SCHEDULES)
        await self._board.look()
        for schedule in self._board.due_jobs():
            if self._is_stopping:
                break
            if budget.is_spent:
                report.skipped = "its budget is spent"
                break
            await self._move_on(schedule, budget, report)
        return report

    async def _move_on(self, schedule: Schedule, budget: Budget, report: RunnerReport) -> None:
        now = self._board.looked_at
        # Whatever comes of it: it is asked for again at the next look, not in a hot loop.
        self._board.settle(schedule.name)
        try:
            planned = slots_to_run(schedule, now)
        except InvalidInput as error:
            self._tell_unreadable(schedule, error)
            report.error = f"schedule {schedule.name!r}: {error}"
            return
        jobs = _jobs(schedule, planned)
        slot = planned.slots[-1] if planned.slots else None
        listed = [str(job.id) for job in jobs[:_LISTED_JOBS]]
        result = encode({"enqueued": len(jobs), "dropped": planned.dropped, "jobs": listed}, name="result")
        run = NewRun(schedule.name, self._replica, slot)
        won = await self._schedules.advance(schedule, planned.next_slot, jobs, run, result)
        self._board.expect(planned.next_slot, now)
        if won:
            budget.take(len(jobs))
            report.processed += len(jobs)
            _count(report, planned.dropped)
            if planned.dropped:
                log_dropped(schedule, planned)

    def _tell_unreadable(self, schedule: Schedule, error: InvalidInput) -> None:
        """Once: it stays so until somebody changes the schedule, or this process is a newer one."""
        key = (schedule.name, schedule.timetable, schedule.zone)
        if key not in self._unreadable:
            self._unreadable.add(key)
            log.error("schedule cannot be read", schedule=schedule.name, error=str(error))


def _jobs(schedule: Schedule, planned: Plan) -> list[NewJob]:
    """One for each slot. A request to run now is answered by any of them, or else by one of its own."""
    template = schedule.job
    if template is None:
        return []
    slots: list[datetime | None] = list(planned.slots)
    if not slots and schedule.run_now:
        slots.append(None)
    return [template.job(_headers(template, schedule.name, slot)) for slot in slots]


def _headers(template: JobTemplate, schedule: str, slot: datetime | None) -> Json:
    headers: dict[str, object] = decode(template.headers) if template.headers else {}
    headers[SCHEDULE_HEADER] = schedule
    if slot is not None:
        headers[SLOT_HEADER] = slot.astimezone(UTC).isoformat()
    return encode(headers, name="headers")


def _count(report: RunnerReport, dropped: int) -> None:
    for name, number in (("schedules", 1), ("dropped", dropped)):
        before = report.counts.get(name, 0)
        report.counts[name] = number + before if isinstance(before, int) else number
