"""Schedules are declared, saved, due, advanced once per occurrence, paused, requested to run now, and locked."""

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.domain.cron import Missed
from holdfast.domain.errors import DuplicateJob, InvalidInput, StoreUnavailable
from holdfast.domain.job import JobState
from holdfast.domain.json_text import Json, encode
from holdfast.store.contract import JobFilter
from holdfast.store.schedules import DueSchedules, JobTemplate, NewRun, Origin, Run, Schedule
from tests.databases import StoreCase
from tests.store_contract.schedule_steps import (
    MINUTE,
    RESULT,
    TEMPLATE,
    ScheduleOptions,
    advanced,
    declared,
    due_schedule,
    names,
    new_schedule,
    shown_schedule,
)
from tests.store_contract.steps import SECOND, START, job, needs

pytestmark = needs("schedules")


async def test_a_schedule_is_stored_as_declared(case: StoreCase) -> None:
    template = JobTemplate(
        kind="mail", payload=encode({"to": "ü"}), queue="slow", priority=2, tenant="acme", headers=encode({"a": 1}),
        max_attempts=7,
    )  # fmt: skip
    new = new_schedule(
        name="mails", timetable="17 3 * * *", zone="America/Santiago", missed=Missed.ALL, missed_limit=5, job=template
    )
    await case.schedules.declare([new, new_schedule(name="inline", job=None)])
    inline, mails = await case.schedules.list()
    assert mails == Schedule(
        name="mails", timetable="17 3 * * *", zone="America/Santiago", missed=Missed.ALL, missed_limit=5, job=template,
        origin=Origin.CODE, next_occurrence=START + MINUTE, last_occurrence=None, paused=False, run_now=0,
    )  # fmt: skip
    assert (inline.name, inline.job) == ("inline", None)


async def test_declaring_again_changes_nothing(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    assert await advanced(case.schedules, schedule)
    await case.schedules.pause("report")
    await case.schedules.run_now("report")
    before = await case.schedules.list()
    await case.schedules.declare([new_schedule(first_occurrence=START + timedelta(days=1))])
    await case.schedules.declare([])
    assert await case.schedules.list() == before


async def test_a_changed_template_or_policy_keeps_the_occurrences_and_the_pause(case: StoreCase) -> None:
    await declared(case)
    await case.schedules.pause("report")
    job = replace(TEMPLATE, priority=0, headers=encode({"b": 2}))
    changed = await declared(case, job=job, missed=Missed.SKIP, missed_limit=3, first_occurrence=START + 9 * MINUTE)
    assert (changed.job, changed.missed, changed.missed_limit) == (job, Missed.SKIP, 3)
    assert (changed.next_occurrence, changed.paused) == (START + MINUTE, True)
    assert (await declared(case, job=None)).job is None


@pytest.mark.parametrize("change", [{"timetable": "17 3 * * *"}, {"zone": "Asia/Tokyo"}], ids=["timetable", "zone"])
async def test_a_changed_timetable_starts_at_its_own_first_occurrence(case: StoreCase, change: ScheduleOptions) -> None:
    schedule = await due_schedule(case)
    assert await advanced(case.schedules, schedule)
    await case.schedules.pause("report")
    options: ScheduleOptions = {**change, "first_occurrence": START + 9 * MINUTE}
    changed = await declared(case, **options)
    assert (changed.next_occurrence, changed.last_occurrence, changed.paused) == (
        START + 9 * MINUTE,
        START + MINUTE,
        True,
    )


async def test_a_stored_schedule_can_be_changed_but_not_one_declared_in_code(case: StoreCase) -> None:
    await case.schedules.save(new_schedule(name="mine", origin=Origin.STORED))
    await case.schedules.save(new_schedule(name="mine", origin=Origin.STORED))
    await case.schedules.save(new_schedule(name="mine", origin=Origin.STORED, missed=Missed.ALL))
    assert (await shown_schedule(case, "mine")).missed is Missed.ALL
    await declared(case)
    with pytest.raises(InvalidInput, match="'report' is declared in code"):
        await case.schedules.save(new_schedule(origin=Origin.STORED, missed=Missed.ALL))
    assert (await shown_schedule(case)).missed is Missed.ONCE
    await declared(case, name="mine")
    assert (await shown_schedule(case, "mine")).origin is Origin.CODE
    with pytest.raises(InvalidInput, match="'mine' is declared in code"):
        await case.schedules.save(new_schedule(name="mine", origin=Origin.STORED))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": ""}, "schedule: is empty"),
        ({"name": "a\nb"}, "schedule: .* control character"),
        ({"missed_limit": 0}, "missed_limit: 0"),
        ({"job": JobTemplate("", Json("{}"))}, "kind: is empty"),
        ({"job": JobTemplate("work", Json("{}"), priority=10)}, "priority: 10"),
        ({"job": None, "origin": Origin.STORED}, "only code can have a function"),
        ({"first_occurrence": START.replace(tzinfo=None)}, "first_occurrence: .* no time zone"),
    ],
)
def test_an_invalid_schedule_is_refused_at_once(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        new_schedule(**options)  # type: ignore[arg-type]


async def test_a_removed_schedule_is_gone(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    assert await case.schedules.remove("report")
    assert not await case.schedules.remove("report")
    assert await case.schedules.list() == []
    assert not await advanced(case.schedules, schedule)
    assert names(await case.schedules.due(["report"])) == []


async def test_schedules_use_the_clock_of_the_store(case: StoreCase) -> None:
    assert await case.schedules.now() == START
    await case.clock.advance(MINUTE)
    assert await case.schedules.now() == START + MINUTE


async def test_a_schedule_is_due_from_its_occurrence_onward(case: StoreCase) -> None:
    assert await case.schedules.due(["report"]) == DueSchedules(START, [], None)
    schedule = await declared(case)
    assert await case.schedules.due(["report"]) == DueSchedules(START, [], MINUTE)
    await case.clock.advance(MINUTE - timedelta(microseconds=1))
    assert (await case.schedules.due(["report"])).next_in == timedelta(microseconds=1)
    await case.clock.advance(timedelta(microseconds=1))
    assert await case.schedules.due(["report"]) == DueSchedules(START + MINUTE, [schedule], None)
    await case.clock.advance(timedelta(days=40))
    assert names(await case.schedules.due(["report"])) == ["report"]


async def test_the_oldest_occurrence_comes_first_and_the_next_one_is_reported(case: StoreCase) -> None:
    for name, minutes in (("c", 2), ("a", 3), ("b", 1), ("later", 40 * 24 * 60), ("last", 50 * 24 * 60)):
        await declared(case, name=name, first_occurrence=START + minutes * MINUTE)
    await case.clock.advance(3 * MINUTE)
    due = await case.schedules.due(["a", "b", "c", "later", "last"])
    assert names(due) == ["b", "c", "a"]
    assert due.next_in == timedelta(days=40) - 3 * MINUTE


async def test_undeclared_schedules_rest_and_stored_ones_belong_to_every_process(case: StoreCase) -> None:
    await declared(case, name="old", first_occurrence=START)
    await declared(case, name="new", first_occurrence=START)
    await declared(case, name="older", first_occurrence=START + MINUTE)
    await case.schedules.save(new_schedule(name="stored", origin=Origin.STORED, first_occurrence=START))
    assert names(await case.schedules.due(["new"])) == ["new", "stored"]
    assert await case.schedules.due([]) == DueSchedules(START, [await shown_schedule(case, "stored")], None)


async def test_advancing_moves_the_schedule_makes_the_jobs_and_records_the_run(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    jobs = [job(kind="a", priority=1, queue="q", tenant="t", max_attempts=3, headers=encode({"n": 1})), job(kind="b")]
    result = encode({"jobs": [str(each.id) for each in jobs], "dropped": 2})
    run = NewRun("report", "replica-1", START + MINUTE)
    assert await case.schedules.advance(schedule, START + 2 * MINUTE, jobs, run, result)
    moved = replace(schedule, next_occurrence=START + 2 * MINUTE, last_occurrence=START + MINUTE)
    assert await case.schedules.list() == [moved]
    second, first = await case.reader.list(JobFilter(), 10)
    assert (first.id, first.kind, first.priority, first.queue, first.tenant, first.max_attempts, first.headers) == (
        jobs[0].id, "a", 1, "q", "t", 3, {"n": 1},
    )  # fmt: skip
    assert (second.id, second.kind, second.state, second.run_at) == (jobs[1].id, "b", JobState.READY, START + MINUTE)
    assert second.correlation_id == str(second.id)
    (recorded,) = await case.runs.list("report", 10)
    assert recorded == Run(
        recorded.id, "report", "replica-1", START + MINUTE, START + MINUTE, START + MINUTE, result, None
    )
    assert await case.schedules.due(["report"]) == DueSchedules(START + MINUTE, [], MINUTE)


async def test_an_occurrence_is_taken_only_once(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    assert await advanced(case.schedules, schedule)
    assert not await advanced(case.schedules, schedule)
    assert (await case.reader.count())[JobState.READY] == 1
    assert len(await case.runs.list(None, 10)) == 1


async def test_an_advance_that_cannot_enqueue_does_nothing(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    taken = job()
    await case.store.enqueue([taken])
    with pytest.raises(DuplicateJob):
        await advanced(case.schedules, schedule, jobs=[job(), job(id=taken.id)])
    assert await shown_schedule(case) == schedule
    assert await case.runs.list(None, 10) == []
    assert [found.id for found in await case.reader.list(JobFilter(), 10)] == [taken.id]


async def test_occurrences_can_be_dropped_without_a_job(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    assert await case.schedules.advance(schedule, START + 9 * MINUTE, [], NewRun("report", "me"), RESULT)
    assert (await shown_schedule(case)).next_occurrence == START + 9 * MINUTE
    assert (await shown_schedule(case)).last_occurrence is None
    (run,) = await case.runs.list(None, 10)
    assert (run.occurrence, run.result) == (None, RESULT)


async def test_a_process_with_an_old_timetable_cannot_advance_the_schedule(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    changed = await declared(case, timetable="1 * * * *", first_occurrence=schedule.next_occurrence)
    assert not await advanced(case.schedules, schedule)
    assert await advanced(case.schedules, changed)


async def test_an_inline_runner_cannot_be_advanced(case: StoreCase) -> None:
    schedule = await due_schedule(case, job=None)
    assert not await advanced(case.schedules, schedule, jobs=[])


async def test_a_paused_schedule_is_not_due_and_does_not_advance(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    await declared(case, name="other", first_occurrence=START + 9 * MINUTE)
    await case.schedules.pause("other")
    assert await case.schedules.pause("report")
    assert await case.schedules.due(["report", "other"]) == DueSchedules(START + MINUTE, [], None)
    assert not await advanced(case.schedules, schedule)
    assert not await case.schedules.pause("nobody")


async def test_a_resumed_schedule_continues_without_the_missed_occurrences(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    await case.schedules.pause("report")
    await case.clock.advance(10 * MINUTE)
    assert await case.schedules.resume(schedule, START + 12 * MINUTE)
    assert await case.schedules.due(["report"]) == DueSchedules(START + 11 * MINUTE, [], MINUTE)
    assert not await case.schedules.resume(replace(schedule, name="nobody"), START)


@pytest.mark.parametrize("change", [ScheduleOptions(timetable="5 * * * *"), ScheduleOptions(zone="Europe/Berlin")])
async def test_a_schedule_does_not_resume_at_an_occurrence_of_another_timetable(
    case: StoreCase, change: ScheduleOptions
) -> None:
    schedule = await declared(case)
    await case.schedules.pause("report")
    changed = await declared(case, **change)
    assert not await case.schedules.resume(schedule, START + 12 * MINUTE)
    assert await shown_schedule(case) == changed
    assert await case.schedules.resume(changed, START + 6 * MINUTE)
    assert await shown_schedule(case) == replace(changed, paused=False, next_occurrence=START + 6 * MINUTE)


async def test_resuming_a_schedule_that_is_not_paused_keeps_its_due_occurrence(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    assert await case.schedules.resume(schedule, START + 12 * MINUTE)
    assert (await case.schedules.due(["report"])).due == [schedule]


async def test_run_now_makes_a_schedule_due_in_addition_to_its_occurrences(case: StoreCase) -> None:
    schedule = await declared(case)
    assert await case.schedules.run_now("report")
    assert await case.schedules.run_now("report")
    assert not await case.schedules.run_now("nobody")
    due = await case.schedules.due(["report"])
    assert due == DueSchedules(START, [replace(schedule, run_now=2)], MINUTE)
    assert await case.schedules.advance(due.due[0], schedule.next_occurrence, [job()], NewRun("report", "me"), RESULT)
    assert await case.schedules.list() == [schedule]
    assert not await case.schedules.advance(
        due.due[0], schedule.next_occurrence, [job()], NewRun("report", "me"), RESULT
    )
    assert (await case.reader.count())[JobState.READY] == 1


async def test_a_request_after_the_look_is_not_lost(case: StoreCase) -> None:
    schedule = await due_schedule(case)
    await case.schedules.run_now("report")
    assert await advanced(case.schedules, schedule)
    assert (await shown_schedule(case)).run_now == 1
    asked = await shown_schedule(case)
    await case.schedules.run_now("report")
    assert await advanced(case.schedules, asked)
    assert (await shown_schedule(case)).run_now == 1


async def test_a_paused_schedule_runs_now_but_keeps_its_occurrence(case: StoreCase) -> None:
    await due_schedule(case)
    await case.schedules.pause("report")
    await case.schedules.run_now("report")
    (seen,) = (await case.schedules.due(["report"])).due
    assert not await advanced(case.schedules, seen)
    assert await advanced(case.schedules, seen, next_occurrence=seen.next_occurrence)
    assert await case.schedules.list() == [replace(seen, run_now=0, last_occurrence=seen.next_occurrence)]
    assert names(await case.schedules.due(["report"])) == []


async def test_a_lock_has_one_holder(case: StoreCase) -> None:
    async with case.schedules.singleton("nightly") as held:
        assert held is not None
        async with case.schedules.singleton("nightly") as other:
            assert other is None
        async with case.schedules.singleton("hourly") as another:
            assert another is not None
    async with case.schedules.singleton("nightly") as again:
        assert again is not None


async def test_a_lock_is_free_after_an_error(case: StoreCase) -> None:
    with pytest.raises(ZeroDivisionError):
        async with case.schedules.singleton("nightly"):
            raise ZeroDivisionError
    async with case.schedules.singleton("nightly") as again:
        assert again is not None


async def test_the_occurrence_is_marked_done_under_the_lock_which_is_then_free(case: StoreCase) -> None:
    schedule = await due_schedule(case, job=None)
    await declared(case, name="other", first_occurrence=START)
    async with case.schedules.singleton("report") as held:
        assert held is not None
        assert await held.due("report") == DueSchedules(START + MINUTE, [schedule], None)
        run = await case.runs.start(NewRun("report", "me", schedule.next_occurrence))
        await case.clock.advance(SECOND)
        result = encode({"sent": 3})
        await held.done(schedule, START + 2 * MINUTE, START + MINUTE, run, result, None)
        async with case.schedules.singleton("report") as other:
            assert other is not None
            assert await other.due("report") == DueSchedules(START + MINUTE + SECOND, [], MINUTE - SECOND)
        with pytest.raises(StoreUnavailable, match="no longer held"):
            await held.due("report")
    moved = replace(schedule, next_occurrence=START + 2 * MINUTE, last_occurrence=START + MINUTE)
    assert await shown_schedule(case) == moved
    (found,) = await case.runs.list("report", 10)
    assert found == Run(run, "report", "me", START + MINUTE, START + MINUTE, START + MINUTE + SECOND, result, None)


async def test_an_occurrence_that_is_not_marked_stays_due(case: StoreCase) -> None:
    schedule = await due_schedule(case, job=None)
    async with case.schedules.singleton("report") as held:
        assert held is not None
    assert (await case.schedules.due(["report"])).due == [schedule]


async def test_done_answers_only_the_requests_it_has_seen(case: StoreCase) -> None:
    await declared(case, job=None)
    await case.schedules.run_now("report")
    async with case.schedules.singleton("report") as held:
        assert held is not None
        (seen,) = (await held.due("report")).due
        await case.schedules.run_now("report")
        run = await case.runs.start(NewRun("report", "me"))
        await held.done(seen, seen.next_occurrence, None, run, None, encode({"code": "ERROR"}))
    assert await shown_schedule(case) == replace(seen, run_now=1)
    (found,) = await case.runs.list("report", 10)
    assert (found.error, found.result) == (encode({"code": "ERROR"}), None)


@pytest.mark.parametrize("change", ["changed", "removed", "resumed"])
async def test_a_schedule_changed_during_its_run_keeps_its_new_occurrence(case: StoreCase, change: str) -> None:
    schedule = await due_schedule(case, job=None)
    later = START + 30 * MINUTE
    async with case.schedules.singleton("report") as held:
        assert held is not None
        run = await case.runs.start(NewRun("report", "me"))
        match change:
            case "changed":
                await declared(case, job=None, timetable="1 * * * *", first_occurrence=later)
            case "removed":
                await case.schedules.remove("report")
            case _:
                await case.schedules.pause("report")
                await case.schedules.resume(schedule, later)
        await held.done(schedule, START + 2 * MINUTE, START + MINUTE, run, None, None)
    occurrences = [(found.next_occurrence, found.last_occurrence) for found in await case.schedules.list()]
    assert occurrences == ([] if change == "removed" else [(later, START + MINUTE)])
    (found,) = await case.runs.list("report", 10)
    assert found.finished_at is not None


async def test_an_unchanged_schedule_is_put_back_to_an_earlier_occurrence(case: StoreCase) -> None:
    schedule = await declared(case, first_occurrence=START + 9 * MINUTE)
    for changed in (
        replace(schedule, next_occurrence=START + 8 * MINUTE),
        replace(schedule, timetable="5 * * * *"),
        replace(schedule, zone="Europe/Berlin"),
        replace(schedule, name="nobody"),
    ):
        assert not await case.schedules.put_back(changed, START + MINUTE)
    await case.schedules.pause("report")
    assert not await case.schedules.put_back(schedule, START + MINUTE)
    await case.schedules.resume(schedule, schedule.next_occurrence)
    assert await shown_schedule(case) == schedule
    assert await case.schedules.put_back(schedule, START + MINUTE)
    assert await shown_schedule(case) == replace(schedule, next_occurrence=START + MINUTE)
