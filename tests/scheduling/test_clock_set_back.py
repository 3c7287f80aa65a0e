"""After a clock that was ahead is set back, schedules continue according to their timetables."""

import time
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from holdfast.domain.cron import Missed
from holdfast.scheduling.schedules import Occurrence
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from holdfast.store.schedules import Schedule, ScheduleStore
from tests.databases import StoreCase
from tests.scheduling.inline_steps import closing
from tests.scheduling.schedule_steps import (
    MINUTE,
    START,
    Counted,
    declared,
    jobs_of,
    occurrence_of,
    once,
    replica,
    shown,
)
from tests.store_contract.steps import SECOND

DAY = timedelta(days=1)


@pytest.fixture
async def case(store_case: StoreCase) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case


async def moved_on_while_the_clock_was_ahead(case: StoreCase, timetable: str, missed: Missed = Missed.ONCE) -> Schedule:
    """Advance the schedule in a process that is gone; at the end the clock is a second after START."""
    runner = replica(case).job_schedules(declared(timetable=timetable, missed=missed))
    await once(runner)
    await case.clock.freeze(START + DAY + 10 * SECOND)
    await once(runner)
    await case.clock.freeze(START + SECOND)
    return await shown(case, "report")


@pytest.mark.parametrize("missed", Missed)
async def test_a_job_schedule_continues_at_the_next_occurrence(
    case: StoreCase, missed: Missed, caplog: pytest.LogCaptureFixture
) -> None:
    before = await moved_on_while_the_clock_was_ahead(case, "* * * * *", missed)
    assert before.next_occurrence == START + DAY + MINUTE
    made = len(await jobs_of(case))
    runner = replica(case).job_schedules(declared(timetable="* * * * *", missed=missed))
    await once(runner)
    assert (await shown(case, "report")).next_occurrence == START + MINUTE
    assert "the clock was ahead" in caplog.text
    for minutes in (1, 2, 3):
        await case.clock.freeze(START + minutes * MINUTE)
        assert (await once(runner)).processed == 1
    again = (await jobs_of(case))[made:]
    assert sorted(str(occurrence_of(job)) for job in again) == [str(START + minutes * MINUTE) for minutes in (1, 2, 3)]


async def test_an_inline_runner_continues_at_the_next_occurrence(case: StoreCase) -> None:
    called: list[object] = []

    async def noting(occurrence: Occurrence) -> None:
        called.append(occurrence.at)

    first, second = (replica(case, name).inline(noting) for name in ("replica-1", "replica-2"))
    async with closing(first, second):
        await once(first)
        await case.clock.freeze(START + DAY)
        await once(first)
        await case.clock.freeze(START + SECOND)
        await once(second)
        await case.clock.freeze(START + MINUTE)
        assert (await once(second)).processed == 1
    assert called == [START + DAY, START + MINUTE]


async def test_an_inline_run_in_progress_while_the_clock_is_set_back_does_not_undo_it(case: StoreCase) -> None:
    async def setting_back(occurrence: Occurrence) -> None:
        if occurrence.at == START + DAY + MINUTE:
            await case.clock.freeze(START + SECOND)
            await once(replica(case, "replica-2").job_schedules())
            assert (await shown(case, "cycle")).next_occurrence == START + MINUTE

    runner = replica(case).inline(setting_back)
    async with closing(runner):
        await once(runner)
        for ahead in (DAY, DAY + MINUTE):
            await case.clock.freeze(START + ahead)
            report = await once(runner)
            assert (report.processed, report.failed) == (1, 0)
        assert (await shown(case, "cycle")).next_occurrence == START + MINUTE


@pytest.mark.parametrize("timetable", ["03:17 daily", "every 2d"])
async def test_the_last_occurrence_that_ran_does_not_run_again(case: StoreCase, timetable: str) -> None:
    before = await moved_on_while_the_clock_was_ahead(case, timetable)
    await once(replica(case).job_schedules(declared(timetable=timetable)))
    assert await shown(case, "report") == before


async def test_occurrences_that_ran_before_a_small_step_back_do_not_run_again(case: StoreCase) -> None:
    runner = replica(case).job_schedules(declared(timetable="every 2s"))
    await once(runner)
    for seconds in (2, 4, 6):
        await case.clock.freeze(START + seconds * SECOND)
        assert (await once(runner)).processed == 1
    await case.clock.freeze(START + SECOND)
    for seconds in (1, 2, 4, 6):
        await case.clock.freeze(START + seconds * SECOND)
        assert (await once(replica(case).job_schedules(declared(timetable="every 2s")))).processed == 0
    await case.clock.freeze(START + 8 * SECOND)
    assert (await once(runner)).processed == 1


async def test_a_paused_schedule_is_not_moved_until_it_is_resumed(case: StoreCase) -> None:
    before = await moved_on_while_the_clock_was_ahead(case, "* * * * *")
    await case.schedules.pause("report")
    await once(replica(case).job_schedules(declared(timetable="* * * * *")))
    assert await shown(case, "report") == replace(before, paused=True)


async def test_an_unreadable_timetable_does_not_keep_other_schedules_from_moving_back(case: StoreCase) -> None:
    await moved_on_while_the_clock_was_ahead(case, "* * * * *")
    unknown = replace(declared("another").as_new(START + DAY), timetable="of a later release")
    await case.schedules.declare([unknown])
    await once(replica(case).job_schedules())
    assert (await shown(case, "report")).next_occurrence == START + MINUTE
    assert (await shown(case, "another")).next_occurrence == START + DAY + MINUTE


async def test_a_process_that_kept_running_notices_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    await store.clock.freeze(START)
    runs = MemoryRuns(store)
    case = StoreCase("memory", store, store, store.clock, MemorySchedules(store, runs), runs)
    calls: list[str] = []
    view = replace(replica(case), schedules=cast(ScheduleStore, Counted(case.schedules, calls.append)))
    seconds = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    runner = view.job_schedules(declared(timetable="every 2s"))
    await once(runner)
    await store.clock.freeze(START + DAY)
    assert (await once(runner)).processed == 1
    await store.clock.freeze(START + SECOND)
    for _ in range(59):
        seconds += 1
        await once(runner)
    assert calls.count("list") == 1, "which the first look did"
    assert (await shown(case, "report")).next_occurrence == START + DAY + 2 * SECOND
    seconds += 1
    await once(runner)
    assert (await shown(case, "report")).next_occurrence == START + 2 * SECOND
