"""The runner for job schedules: makes one job per occurrence, in the transaction that moves the schedule forward."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from holdfast.domain.budget import Budget
from holdfast.domain.crash_points import reach
from holdfast.domain.cron import Due
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json, decode, encode
from holdfast.domain.runner import RunnerReport
from holdfast.logs.records import get_logger
from holdfast.scheduling.board import ScheduleBoard
from holdfast.scheduling.due import Unreadable, due_occurrences, log_dropped
from holdfast.store.schedules import JobTemplate, NewRun, Schedule, ScheduleStore

log = get_logger("holdfast.schedules")

SCHEDULES = "schedules"
SCHEDULE_HEADER = "holdfast.schedule"
OCCURRENCE_HEADER = "holdfast.occurrence"
"""The occurrence in UTC, ISO 8601. Jobs made by `run_now` do not have this header."""

_LISTED_JOBS = 100
_MOST_OCCURRENCES_AT_ONCE = 500
_MOST_CHARACTERS_AT_ONCE = 4 * 1024 * 1024
# Each request during an outage can take long to fail, so give up after a few.
_MOST_OUTAGES = 3


class JobSchedules:
    """The schedule in the store, not this process's code, decides which occurrences run."""

    def __init__(self, board: ScheduleBoard, schedules: ScheduleStore, replica: str) -> None:
        self._board = board
        self._schedules = schedules
        self._replica = replica
        self._is_stopping = False
        self._unreadable = Unreadable()
        self._failing: dict[str, str] = {}

    @property
    def name(self) -> str:
        return SCHEDULES

    def due_in(self) -> float:
        return 0.0 if self._board.due_jobs() else self._board.look_in()

    def wake(self) -> None:
        self._board.look_soon()

    def stop(self) -> None:
        self._is_stopping = True

    async def close(self, seconds: float) -> RunnerReport | None:  # noqa: ARG002 - nothing keeps running
        return None

    async def run(self, budget: Budget, *, to_end: bool) -> RunnerReport:  # noqa: ARG002 - each pass runs to its end
        report = RunnerReport(SCHEDULES)
        await self._board.look()
        moved, outages, first = 0, 0, None
        # Schedules that failed the last time come last, so that they do not hold up the others.
        for schedule in sorted(self._board.due_jobs(), key=lambda schedule: schedule.name in self._failing):
            if self._is_stopping or outages == _MOST_OUTAGES:
                break
            if budget.is_spent:
                report.skipped = "its budget is spent"
                break
            try:
                await self._move_on(schedule, budget, report)
            except (Exception, asyncio.CancelledError) as error:
                if is_being_canceled():
                    raise
                first = first or error
                outages += isinstance(error, StoreUnavailable)
                self._tell_failed(schedule, error, report)
            else:
                moved += 1
                self._failing.pop(schedule.name, None)
        if first is not None and not moved:
            raise first
        return report

    async def _move_on(self, schedule: Schedule, budget: Budget, report: RunnerReport) -> None:
        now = self._board.looked_at
        # Settle it whatever happens, so that it is retried at the next look and not in a hot loop.
        self._board.settle(schedule.name)
        try:
            due = due_occurrences(schedule, now)
        except InvalidInput as error:
            report.error = self._unreadable.tell(schedule, error)
            return
        for advance in _advances(schedule, due):
            if budget.is_spent or self._is_stopping or not await self._take(schedule, advance, budget, report):
                self._board.expect(advance.seen.next_occurrence, now)
                break
        else:
            self._board.expect(due.next_occurrence, now)

    async def _take(self, schedule: Schedule, advance: "_Advance", budget: Budget, report: RunnerReport) -> bool:
        """Take these occurrences; return whether this process got them."""
        jobs = [_job(schedule, occurrence) for occurrence in advance.occurrences]
        listed = [str(job.id) for job in jobs[:_LISTED_JOBS]]
        result = encode({"enqueued": len(jobs), "dropped": advance.dropped, "jobs": listed}, name="result")
        run = NewRun(schedule.name, self._replica, advance.occurrences[-1] if advance.occurrences else None)
        reach("occurrence.before")
        won = await self._schedules.advance(advance.seen, advance.next_occurrence, jobs, run, result)
        reach("occurrence.after")
        if won:
            budget.take(len(jobs))
            report.processed += len(jobs)
            _count(report, advance.dropped)
            if advance.dropped:
                log_dropped(schedule, advance.dropped)
        return won

    def _tell_failed(self, schedule: Schedule, error: BaseException, report: RunnerReport) -> None:
        """Report the error; log it once until the schedule succeeds again, because it may fail at every look."""
        said = f"{type(error).__name__}: {error}"
        report.error = f"schedule {schedule.name!r}: {said}"
        if self._failing.get(schedule.name) != said:
            self._failing[schedule.name] = said
            trace = None if isinstance(error, StoreUnavailable) else error
            log.error("schedule could not be advanced", schedule=schedule.name, error=said, exc_info=trace)


@dataclass(frozen=True, slots=True)
class _Advance:
    """What one transaction does: make a job per occurrence and move the schedule from `seen` to `next_occurrence`."""

    seen: Schedule
    occurrences: tuple[datetime | None, ...]
    next_occurrence: datetime
    dropped: int = 0


def _advances(schedule: Schedule, due: Due) -> Iterator[_Advance]:
    """The due occurrences in batches, then one separate job for the requests to run now."""
    seen, dropped, size = replace(schedule, run_now=0), due.dropped, _occurrences_at_once(schedule)
    if due.next_occurrence != schedule.next_occurrence:
        for start in range(0, max(1, len(due.occurrences)), size):
            occurrences, later = due.occurrences[start : start + size], due.occurrences[start + size :]
            next_occurrence = later[0] if later else due.next_occurrence
            yield _Advance(seen, occurrences, next_occurrence, dropped)
            seen, dropped = replace(seen, next_occurrence=next_occurrence), 0
    if schedule.run_now:
        yield _Advance(replace(seen, run_now=schedule.run_now), (None,), due.next_occurrence)


def _occurrences_at_once(schedule: Schedule) -> int:
    """The size of a batch. Thousands of occurrences may be missed, and each sends up to a megabyte of payload."""
    template = schedule.job
    size = 0 if template is None else len(template.payload) + len(template.headers or "")
    return max(1, min(_MOST_OCCURRENCES_AT_ONCE, _MOST_CHARACTERS_AT_ONCE // max(1, size)))


def _job(schedule: Schedule, occurrence: datetime | None) -> NewJob:
    template = schedule.job
    if template is None:
        raise TypeError(f"schedule {schedule.name!r} has no job")
    return template.job(_headers(template, schedule.name, occurrence))


def _headers(template: JobTemplate, schedule: str, occurrence: datetime | None) -> Json:
    headers: dict[str, object] = decode(template.headers) if template.headers else {}
    headers[SCHEDULE_HEADER] = schedule
    if occurrence is not None:
        headers[OCCURRENCE_HEADER] = occurrence.astimezone(UTC).isoformat()
    return encode(headers, name="headers")


def _count(report: RunnerReport, dropped: int) -> None:
    for name, number in (("schedules", 1), ("dropped", dropped)):
        before = report.counts.get(name, 0)
        report.counts[name] = number + before if isinstance(before, int) else number
