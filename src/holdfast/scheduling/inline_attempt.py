"""One attempt of this replica at an inline runner's occurrence: take the lock, record the run, call, mark as done."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime

from holdfast.domain.crash_points import reach
from holdfast.domain.cron import Due, Missed, Timetable, due_at, parse_timetable
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.failures import Failures
from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json, encode
from holdfast.domain.runner import RunnerReport
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.scheduling.due import Unreadable, due_occurrences, log_dropped
from holdfast.scheduling.inline_call import LOCK_LOST, Ending, InlineCall
from holdfast.scheduling.schedules import InlineFunction, Occurrence
from holdfast.store.schedules import NewRun, RunStore, Schedule, ScheduleStore, Singleton
from holdfast.worker.lifespan import Lifespan
from holdfast.worker.threads import HandlerThreads

log = get_logger("holdfast.schedules")

ELSEWHERE = "another replica is running it"
MAKES_JOBS = "it is now a job schedule, so the function does not run"
REPLICA_LOST = JobError(
    code="REPLICA_LOST", type="ReplicaLost", message="the replica that ran it was lost before the run ended"
)

_RECORD_TRIES = 5
_RECORD_WAIT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class InlineParts:
    """The parts of an inline runner. `lock` is the documented text of its advisory lock."""

    name: str
    function: InlineFunction
    lock: str
    schedules: ScheduleStore
    runs: RunStore
    replica: str
    failures: Failures
    lifespan: Lifespan = field(default_factory=Lifespan)
    unreadable: Unreadable = field(default_factory=Unreadable)


class InlineAttempt:
    """`report` is complete when `reported` is set. A function that cannot be stopped may keep the attempt, and with it
    the lock, for longer."""

    def __init__(self, parts: InlineParts, threads: HandlerThreads, signals: Signals) -> None:
        self.report = RunnerReport(parts.name)
        self.reported = asyncio.Event()
        self.is_undone = False
        """The occurrence is not done; this or another replica has to run it later."""
        self.next_occurrence: tuple[datetime, datetime] | None = None
        """When there is more to do, now or at the next occurrence, and the store's clock when this was determined."""
        self.overlap: datetime | None = None
        """The first occurrence to skip if this attempt is still running; None if occurrences wait for their turn."""
        self._parts = parts
        self._signals = signals
        self._call = InlineCall(parts.function, parts.failures, threads)
        self._timetable: Timetable | None = None
        """None until there is an occurrence to run, and if occurrences are never skipped."""

    def interrupt(self, why: str) -> None:
        self._call.interrupt(why)

    def tell(self) -> None:
        self.reported.set()
        self._signals.changed.set()

    def overlapped(self, now: datetime) -> datetime | None:
        """An occurrence that came due while this attempt was running; each is returned once."""
        occurrence = self.overlap
        if occurrence is None or occurrence > now or self._timetable is None:
            return None
        self.overlap = self._timetable.next_after(now)
        return occurrence

    async def execute(self) -> None:
        name = self._parts.name
        async with self._parts.schedules.singleton(self._parts.lock) as held:
            if held is None:
                self.is_undone = True
                self.report.skipped = ELSEWHERE
                return
            look = await held.due(name)
            if not look.due:
                self.next_occurrence = None if look.next_in is None else (look.now + look.next_in, look.now)
                return
            if look.due[0].job is not None:
                self.is_undone = True
                self.report.skipped = MAKES_JOBS
                return
            if self._call.is_interrupted:
                self.is_undone = True
                return
            try:
                due = await self._due(look.due[0], look.now)
            except InvalidInput as error:
                self.is_undone = True
                self.report.error = self._parts.unreadable.tell(look.due[0], error)
                return
            await self._run(held, look.due[0], due)
            if not self._call.is_over:
                self.tell()
                await self._call.over()

    async def _run(self, held: Singleton, schedule: Schedule, due: Due) -> None:
        occurrence = due.occurrences[0] if due.occurrences else None
        if due.dropped:
            log_dropped(schedule, due.dropped)
            self.report.counts["dropped"] = due.dropped
        await self._abandon_others()
        run = await self._parts.runs.start(NewRun(schedule.name, self._parts.replica, occurrence))
        if schedule.missed is not Missed.ALL and not schedule.paused:
            self._timetable = parse_timetable(schedule.timetable, schedule.zone)
            self.overlap = due.next_occurrence
        if occurrence is None and not schedule.run_now:
            ending = Ending(encode({"dropped": due.dropped}))
        else:
            call = Occurrence(schedule.name, occurrence, run, self._parts.replica, self._parts.lifespan.state)
            reach("inline.before")
            ending = await self._call.run(call, held.lost())
            reach("inline.after")
            self.report.processed = 1
        if ending.is_over:
            ending = await self._mark(held, schedule, due, run, ending)
        if not ending.is_over:
            self.is_undone = True
            await self._record(run, ending)
        self._tell(ending)

    async def _due(self, schedule: Schedule, now: datetime) -> Due:
        """The due occurrences. One that started but is not done was not missed: it runs again, however late, even if
        the policy skips late ones."""
        due = due_occurrences(schedule, now)
        if due.dropped and not due.occurrences:
            newest = await self._parts.runs.list(schedule.name, 1)
            if newest and newest[0].occurrence is not None and newest[0].occurrence >= schedule.next_occurrence:
                return due_occurrences(replace(schedule, missed=Missed.ONCE), now)
        return due

    async def _abandon_others(self) -> None:
        """End the unfinished runs of other replicas. We hold the lock, so those replicas are gone."""
        abandoned = await self._parts.runs.abandon(self._parts.name, encode(REPLICA_LOST.as_dict()))
        if abandoned:
            log.warning("a run was left unfinished by a lost replica", runner=self._parts.name, runs=abandoned)

    async def _mark(self, held: Singleton, schedule: Schedule, due: Due, run: int, ending: Ending) -> Ending:
        occurrence = (due.occurrences or (None,))[0]
        next_occurrence = (*due.occurrences[1:], due.next_occurrence)[0]
        # The run of an occurrence does not satisfy a request to run now: that gets a separate run afterward.
        seen = schedule if occurrence is None else replace(schedule, run_now=0)
        try:
            look = await held.due(schedule.name)
            now = look.now
            if self._timetable is not None and next_occurrence <= now:
                next_occurrence = self._skip_overlapped(self._timetable, next_occurrence, now)
            await held.done(seen, next_occurrence, occurrence, run, ending.result, _json(ending.error))
            reach("inline.marked")
        except StoreUnavailable as error:
            log.warning("the occurrence could not be marked as done", runner=schedule.name, error=str(error))
            return Ending(error=LOCK_LOST, is_over=False)
        is_asked = any(found.run_now > seen.run_now for found in look.due)
        self.next_occurrence = (now if is_asked else next_occurrence, now)
        return ending

    def _skip_overlapped(self, timetable: Timetable, next_occurrence: datetime, now: datetime) -> datetime:
        overlapped = due_at(timetable, next_occurrence, now, Missed.ONCE, 1)
        skipped = len(overlapped.occurrences) + overlapped.dropped
        # In the background, there was a warning for each of them when it came due.
        log.info(
            "occurrences came due while it ran and are skipped",
            runner=self._parts.name,
            skipped=skipped,
            oldest=next_occurrence.isoformat(),
        )
        self.report.counts["overlapped"] = skipped
        return overlapped.next_occurrence

    async def _record(self, run: int, ending: Ending) -> None:
        """Record the end of a failed run. The store may be unavailable; then the next run abandons this one."""
        for _ in range(_RECORD_TRIES):
            try:
                await self._parts.runs.finish(run, ending.result, _json(ending.error))
                return
            except StoreUnavailable:
                await asyncio.sleep(_RECORD_WAIT_SECONDS)

    def _tell(self, ending: Ending) -> None:
        self.report.counts |= ending.counts
        if ending.error is not None:
            self.report.failed = 1
            self.report.error = f"{ending.error.code}: {ending.error.summary}"
            log.warning(
                "run did not succeed",
                runner=self._parts.name,
                code=ending.error.code,
                # Not the message, which is stored in the run: it may contain data that must not be logged.
                error=ending.error.type,
            )


def _json(error: JobError | None) -> Json | None:
    return None if error is None else encode(error.as_dict())
