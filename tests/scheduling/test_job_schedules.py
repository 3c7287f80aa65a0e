"""Job schedules make one job per occurrence, for every clock change, policy and number of processes."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo

import pytest

from holdfast.domain.budget import Budget
from holdfast.domain.cron import Missed
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json, decode, encode
from holdfast.domain.runner import RunnerReport
from holdfast.scheduling.job_schedules import JobSchedules
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from holdfast.store.schedules import JobTemplate, NewRun, Origin, Schedule, ScheduleStore
from tests.databases import StoreCase
from tests.scheduling.schedule_steps import (
    MINUTE,
    START,
    Counted,
    declared,
    jobs_of,
    occurrence_of,
    once,
    replica,
    replicas,
    runs_of,
    shown,
)
from tests.store_contract.schedule_steps import new_schedule

ZONES = (
    "Europe/Berlin", "America/New_York", "America/Santiago", "America/Havana", "Australia/Lord_Howe", "Asia/Tokyo",
    "Asia/Kathmandu", "UTC",
)  # fmt: skip
# Fixed times of day that fall into the clock changes of these zones, and one interval.
FIXED = {"30 2 * * *": (2, 30), "15 0 * * *": (0, 15), "45 23 * * *": (23, 45), "17 3 * * *": (3, 17)}
RUNNING = {"40 * * * *": 40}


@pytest.fixture
async def case(store_case: StoreCase) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case


def _minutes(start: datetime, end: datetime) -> Iterator[datetime]:
    while start <= end:
        yield start
        start += MINUTE


def _arrivals(zone: str, start: datetime, end: datetime) -> dict[tuple[int, int], list[datetime]]:
    """Return the moments when each time of day arrives: when the zone's clock first shows it or a later time."""
    place = ZoneInfo(zone)
    arrivals: dict[tuple[int, int], list[datetime]] = defaultdict(list)
    latest = (start - timedelta(days=2)).astimezone(place).replace(tzinfo=None)
    for moment in _minutes(start - timedelta(days=2), end):
        wall = moment.astimezone(place).replace(tzinfo=None)
        while latest < wall:
            latest += MINUTE
            if moment > start:
                arrivals[latest.hour, latest.minute].append(moment)
    return arrivals


def _running_occurrences(zone: str, minute: int, start: datetime, end: datetime) -> list[datetime]:
    place = ZoneInfo(zone)
    return [moment for moment in _minutes(start + MINUTE, end) if moment.astimezone(place).minute == minute]


# The occurrences are computed without a store, so PostgreSQL does not have to run every week.
WEEKS = [
    *(("memory", day) for day in ((3, 8), (3, 29), (4, 4), (9, 6), (10, 4), (10, 25), (11, 1))),
    *(("embedded-18", day) for day in ((4, 4), (11, 1))),
]


@pytest.mark.parametrize(
    ("store_case", "first_day"),
    WEEKS,
    indirect=["store_case"],
    ids=[f"{store}-2030-{month:02}-{day:02}" for store, (month, day) in WEEKS],
)
async def test_a_week_with_clock_changes_has_a_job_for_every_occurrence(
    store_case: StoreCase, first_day: tuple[int, int]
) -> None:
    """America/New_York and America/Havana (at midnight) change on 10 March and 3 November, Europe/Berlin on 31 March
    and 27 October, America/Santiago (at midnight) on 7 April and 8 September, Australia/Lord_Howe (by half an hour) on
    7 April and 6 October."""
    start = datetime(2030, *first_day, 0, 7, tzinfo=UTC)
    end = start + timedelta(days=7)
    await store_case.clock.freeze(start)
    schedules = [
        declared(f"{zone} {timetable}", timetable, zone, Missed.ALL)
        for zone in ZONES
        for timetable in (*FIXED, *RUNNING)
    ]
    runner = replica(store_case).job_schedules(*schedules)
    await once(runner)
    while await store_case.clock.now() < end:
        await store_case.clock.advance(timedelta(minutes=30))
        await once(runner)
    made: dict[str, list[datetime | None]] = {schedule.name: [] for schedule in schedules}
    for job in await jobs_of(store_case):
        assert job.headers is not None
        made[job.headers["holdfast.schedule"]].append(occurrence_of(job))
    for zone in ZONES:
        arrivals = _arrivals(zone, start, end)
        for timetable, time_of_day in FIXED.items():
            assert made[f"{zone} {timetable}"] == arrivals[time_of_day], (zone, timetable)
        for timetable, minute in RUNNING.items():
            assert made[f"{zone} {timetable}"] == _running_occurrences(zone, minute, start, end), (zone, timetable)


def test_the_oracle_handles_clock_changes() -> None:
    """Checked by hand: Berlin goes from 02:00 to 03:00 on 31 March, and from 03:00 to 02:00 on 27 October 2030."""

    def occurrences(first: datetime, hour: int, minute: int) -> list[str]:
        arrivals = _arrivals("Europe/Berlin", first, first + timedelta(days=1))
        return [occurrence.strftime("%d %H:%M") for occurrence in arrivals[hour, minute]]

    assert occurrences(datetime(2030, 3, 30, 12, tzinfo=UTC), 2, 30) == ["31 01:00"]
    assert occurrences(datetime(2030, 10, 26, 12, tzinfo=UTC), 2, 30) == ["27 00:30"]
    assert occurrences(datetime(2030, 10, 26, 12, tzinfo=UTC), 3, 17) == ["27 02:17"]


async def test_an_occurrence_becomes_a_job_that_shows_its_schedule(case: StoreCase) -> None:
    template = JobTemplate(
        kind="mail", payload=encode({"to": "all"}), queue="slow", priority=1, tenant="acme",
        headers=encode({"trace": "x", "holdfast.occurrence": "forged"}), max_attempts=2,
    )  # fmt: skip
    runner = replica(case).job_schedules(declared(job=template))
    assert (await once(runner)).processed == 0
    await case.clock.advance(MINUTE)
    report = await once(runner)
    assert (report.runner, report.processed, report.error) == ("schedules", 1, None)
    (job,) = await jobs_of(case)
    assert job.headers is not None
    assert job.headers == {
        "trace": "x",
        "holdfast.schedule": "report",
        "holdfast.occurrence": "2030-01-01T12:01:00+00:00",
    }
    assert (job.kind, job.payload, job.queue, job.priority, job.tenant, job.max_attempts) == (
        "mail", decode(template.payload), "slow", 1, "acme", 2,
    )  # fmt: skip
    assert job.correlation_id == str(job.id)
    (run,) = await runs_of(case, "report")
    assert (run.replica, run.occurrence, run.started_at, run.finished_at) == ("replica-1", *[START + MINUTE] * 3)
    assert run.result is not None
    assert decode(run.result) == {"enqueued": 1, "dropped": 0, "jobs": [str(job.id)]}


@pytest.mark.parametrize(
    ("missed", "limit", "late", "occurrences", "dropped"),
    [
        (Missed.SKIP, 100, timedelta(seconds=59), [1], 0),
        (Missed.SKIP, 100, timedelta(minutes=25, seconds=59), [6], 5),
        (Missed.SKIP, 100, timedelta(minutes=26), [], 6),
        (Missed.ONCE, 100, timedelta(minutes=29), [6], 5),
        (Missed.ALL, 100, timedelta(minutes=29), [1, 2, 3, 4, 5, 6], 0),
        (Missed.ALL, 2, timedelta(minutes=29), [5, 6], 4),
    ],
)
async def test_missed_occurrences_run_or_are_dropped_by_the_policy(
    case: StoreCase, caplog: pytest.LogCaptureFixture, missed: Missed, limit: int, late: timedelta,
    occurrences: list[int], dropped: int,
) -> None:  # fmt: skip
    caplog.set_level("INFO")
    runner = replica(case).job_schedules(declared(timetable="*/5 * * * *", missed=missed, missed_limit=limit))
    await once(runner)
    await case.clock.advance(5 * MINUTE + late)
    report = await once(runner)
    assert [occurrence_of(job) for job in await jobs_of(case)] == [
        START + number * 5 * MINUTE for number in occurrences
    ]
    assert (report.processed, report.counts.get("dropped")) == (len(occurrences), dropped)
    assert (await shown(case, "report")).next_occurrence == START + (10 if late < MINUTE else 35) * MINUTE
    levels = [
        line.levelname for line in caplog.records if "occurrences were missed and are skipped" in line.getMessage()
    ]
    assert levels == (["WARNING" if missed is Missed.ALL else "INFO"] if dropped else [])
    (run,) = await runs_of(case, "report")
    assert run.result is not None
    assert (decode(run.result)["enqueued"], decode(run.result)["dropped"]) == (len(occurrences), dropped)
    assert (await once(runner)).processed == 0


async def test_pause_resume_and_run_now(case: StoreCase) -> None:
    runner = replica(case).job_schedules(declared())
    await once(runner)
    await case.schedules.pause("report")
    await case.clock.advance(5 * MINUTE)
    assert (await once(runner)).processed == 0
    await case.schedules.run_now("report")
    assert (await once(runner)).processed == 1
    assert (await once(runner)).processed == 0
    await case.schedules.resume(await shown(case, "report"), START + 6 * MINUTE)
    assert (await once(runner)).processed == 0
    await case.schedules.run_now("report")
    await case.schedules.run_now("report")
    assert (await once(runner)).processed == 1
    await case.clock.advance(MINUTE)
    await case.schedules.run_now("report")
    # The job of the occurrence does not answer the request.
    assert (await once(runner)).processed == 2
    assert (await once(runner)).processed == 0
    assert [occurrence_of(job) for job in await jobs_of(case)] == [None, None, START + 6 * MINUTE, None]
    assert [run.occurrence for run in await runs_of(case, "report")] == [None, None, START + 6 * MINUTE, None]
    assert (await shown(case, "report")).run_now == 0


async def test_many_runners_make_one_job_for_each_occurrence(case: StoreCase) -> None:
    async with replicas(case, 4) as views:
        runners = [view.job_schedules(declared(), declared("other", missed=Missed.ALL)) for view in views]
        await asyncio.gather(*(once(runner) for runner in runners))
        for _ in range(10):
            await case.clock.advance(MINUTE)
            reports = await asyncio.gather(*(once(runner) for runner in runners))
            assert sum(report.processed for report in reports) == 2
    occurrences = Counter(
        (job.headers and job.headers["holdfast.schedule"], occurrence_of(job)) for job in await jobs_of(case)
    )
    assert occurrences == {
        (name, START + number * MINUTE): 1 for name in ("report", "other") for number in range(1, 11)
    }


async def test_a_lost_reply_makes_no_second_job(case: StoreCase) -> None:
    class Lossy:
        def __getattr__(self, name: str) -> object:
            return getattr(case.schedules, name)

        async def advance(
            self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
        ) -> bool:
            assert await case.schedules.advance(schedule, next_occurrence, jobs, run, result)
            raise StoreUnavailable("the connection was lost")

    view = replace(replica(case), schedules=cast(ScheduleStore, Lossy()))
    runner = view.job_schedules(declared())
    await once(runner)
    await case.clock.advance(MINUTE)
    with pytest.raises(StoreUnavailable):
        await once(runner)
    assert (await once(runner)).processed == 0
    assert len(await jobs_of(case)) == 1


async def test_an_unreadable_schedule_does_not_stop_the_others(
    case: StoreCase, caplog: pytest.LogCaptureFixture
) -> None:
    await case.schedules.save(
        new_schedule(name="a", timetable="when it rains", origin=Origin.STORED, first_occurrence=START)
    )
    runner = replica(case).job_schedules(declared("b"))
    await case.clock.advance(-MINUTE)
    await once(runner)
    await case.clock.advance(2 * MINUTE)
    report = await once(runner)
    assert report.processed == 1
    assert report.error is not None
    assert report.error.startswith("schedule 'a': timetable: 'when it rains'")
    await once(runner)
    assert len([line for line in caplog.messages if "schedule cannot be read" in line]) == 1


class Breaking:
    """A store that fails to advance some schedules."""

    def __init__(self, schedules: ScheduleStore, errors: dict[str, Exception]) -> None:
        self._schedules = schedules
        self.errors = errors
        self.sizes: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._schedules, name)

    async def advance(
        self, schedule: Schedule, next_occurrence: datetime, jobs: Sequence[NewJob], run: NewRun, result: Json
    ) -> bool:
        if schedule.name in self.errors:
            raise self.errors[schedule.name]
        self.sizes.append((len(jobs), sum(len(job.payload) for job in jobs)))
        return await self._schedules.advance(schedule, next_occurrence, jobs, run, result)


@pytest.mark.parametrize("error", [StoreUnavailable("the connection was lost"), ValueError("a bug")])
async def test_failing_schedules_do_not_stop_the_others(
    case: StoreCase, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    broken = Breaking(case.schedules, dict.fromkeys("abcd", error))
    view = replace(replica(case), schedules=cast(ScheduleStore, broken))
    # The runner gives up after a few outages, but it must still advance the two schedules that work.
    runner = view.job_schedules(*(declared(name) for name in "abcdef"))
    await once(runner)
    errors = set()
    for _ in range(3):
        await case.clock.advance(MINUTE)
        errors |= {report.error for _ in range(2) if (report := await _once_or_none(runner)) is not None}
    assert None not in errors
    made = Counter((job.headers and job.headers["holdfast.schedule"]) for job in await jobs_of(case))
    assert made == {"e": 3, "f": 3}
    lines = [line for line in caplog.messages if "schedule could not be advanced" in line]
    assert len(lines) == 4
    broken.errors.clear()
    assert (await once(runner)).error is None
    assert len(await jobs_of(case)) == 10


async def _once_or_none(runner: JobSchedules) -> RunnerReport | None:
    """Return None if no schedule succeeded, because then the tick handles the error."""
    try:
        return await once(runner)
    except (StoreUnavailable, ValueError):
        return None


async def test_many_large_occurrences_are_made_in_several_batches(case: StoreCase) -> None:
    counting = Breaking(case.schedules, {})
    view = replace(replica(case), schedules=cast(ScheduleStore, counting))
    large = JobTemplate("work", encode({"text": "x" * 1_000_000}))
    runner = view.job_schedules(declared(missed=Missed.ALL, missed_limit=9, job=large))
    await once(runner)
    await case.clock.advance(11 * MINUTE)
    report = await once(runner, Budget(items=4))
    assert report.processed == 4
    assert runner.due_in() == 0
    report = await once(runner)
    assert (report.processed, report.error) == (5, None)
    assert [occurrence_of(job) for job in await jobs_of(case)] == [START + number * MINUTE for number in range(3, 12)]
    assert max(size for _, size in counting.sizes) < 5_000_000
    assert (await shown(case, "report")).next_occurrence == START + 12 * MINUTE
    dropped = [decode(run.result)["dropped"] for run in await runs_of(case, "report") if run.result]
    assert sum(dropped) == 2


async def test_many_small_occurrences_are_made_in_few_batches(case: StoreCase) -> None:
    counting = Breaking(case.schedules, {})
    view = replace(replica(case), schedules=cast(ScheduleStore, counting))
    runner = view.job_schedules(declared(missed=Missed.ALL, missed_limit=1200))
    await once(runner)
    await case.clock.advance(1200 * MINUTE)
    assert (await once(runner)).processed == 1200
    assert [jobs for jobs, _ in counting.sizes] == [500, 500, 200]


async def test_stored_schedules_are_found_and_those_of_other_apps_are_left_alone(case: StoreCase) -> None:
    runner = replica(case).job_schedules(declared())
    await once(runner)
    await once(replica(case).job_schedules(declared("of another app")))
    await case.schedules.save(new_schedule(name="stored", origin=Origin.STORED, first_occurrence=START + MINUTE))
    await case.clock.advance(MINUTE)
    assert (await once(runner)).processed == 2
    assert (await shown(case, "of another app")).next_occurrence == START + MINUTE
    assert (await shown(case, "stored")).next_occurrence == START + 2 * MINUTE


async def test_occurrences_beyond_the_budget_wait_for_the_next_tick(case: StoreCase) -> None:
    runner = replica(case).job_schedules(*(declared(f"schedule-{number}") for number in range(5)))
    await once(runner)
    await case.clock.advance(MINUTE)
    report = await once(runner, Budget(items=3))
    assert (report.processed, report.skipped) == (3, "its budget is spent")
    assert runner.due_in() == 0
    assert (await once(runner)).processed == 2


async def test_a_runner_that_is_not_due_sends_no_query() -> None:
    store = MemoryStore()
    await store.clock.freeze(START)
    schedules = MemorySchedules(store, MemoryRuns(store))
    calls: list[str] = []
    view = replica(StoreCase("memory", store, store, store.clock, schedules, MemoryRuns(store)))
    view = replace(view, schedules=cast(ScheduleStore, Counted(schedules, calls.append)))
    runner = view.job_schedules(declared(), look_every=timedelta(hours=1))
    assert runner.due_in() == 0
    await once(runner)
    assert calls == ["now", "declare", "due", "list"]
    due_in = runner.due_in()
    assert 0 < due_in <= 60
    await once(runner)
    assert len(calls) == 4
    runner.wake()
    assert runner.due_in() == 0
    await once(runner)
    assert calls[4:] == ["due"]


async def test_the_next_look_is_at_the_next_occurrence(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    await store.clock.freeze(START)
    case = StoreCase("memory", store, store, store.clock, MemorySchedules(store, MemoryRuns(store)), MemoryRuns(store))
    runner = replica(case).job_schedules(declared(timetable="every 10s"), look_every=timedelta(hours=1))
    await once(runner)
    await store.clock.advance(timedelta(seconds=17))
    seconds = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: seconds + 10)
    assert (await once(runner)).processed == 1
    assert runner.due_in() == pytest.approx(3)


async def test_without_schedules_the_runner_looks_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    await store.clock.freeze(START)
    case = StoreCase("memory", store, store, store.clock, MemorySchedules(store, MemoryRuns(store)), MemoryRuns(store))
    seconds = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    runner = replica(case).job_schedules(look_every=timedelta(seconds=1))
    await once(runner)
    assert runner.due_in() == pytest.approx(10)
    await case.schedules.save(new_schedule(name="stored", origin=Origin.STORED, first_occurrence=START + MINUTE))
    seconds += 10
    await once(runner)
    assert runner.due_in() == pytest.approx(1)
    await case.schedules.remove("stored")
    seconds += 1
    await once(runner)
    assert runner.due_in() == pytest.approx(1), "who had some may soon have some again"


async def test_paused_schedules_in_code_do_not_slow_down_the_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    await store.clock.freeze(START)
    case = StoreCase("memory", store, store, store.clock, MemorySchedules(store, MemoryRuns(store)), MemoryRuns(store))
    await case.schedules.declare([declared().as_new(START)])
    await case.schedules.pause("report")
    seconds = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    runner = replica(case).job_schedules(declared(), look_every=timedelta(seconds=1))
    await once(runner)
    assert runner.due_in() == pytest.approx(1)
