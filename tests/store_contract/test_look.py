"""look: what is due, and how long a worker may sleep."""

from datetime import timedelta

from holdfast.domain.job import JobState
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import ENDINGS, SECOND, claimed, enqueued, finished, in_state, lost, needs, wants


async def test_an_empty_queue_has_no_due_time(case: StoreCase) -> None:
    assert (await case.store.look(["default"], ["work"])).due_in is None
    assert (await case.store.look([], [])).due_in is None


async def test_an_overdue_job_is_due_now(case: StoreCase) -> None:
    await enqueued(case)
    assert (await case.store.look(["default"], ["work"])).due_in == timedelta(0)
    await case.clock.advance(timedelta(days=1))
    assert (await case.store.look(["default"], ["work"])).due_in == timedelta(0)


@needs(Part.QUEUES, Part.PRIORITIES, Part.ANY_KIND)
async def test_the_earliest_of_all_wanted_lanes_counts(case: StoreCase) -> None:
    await enqueued(case, delay=timedelta(days=400), priority=0)
    await enqueued(case, delay=9 * SECOND, priority=1)
    await enqueued(case, delay=7 * SECOND, kind="other", queue="mail", priority=9)
    assert (await case.store.look(["default"], ["work"])).due_in == 9 * SECOND
    assert (await case.store.look(["mail", "default"], ["work", "other"])).due_in == 7 * SECOND
    assert (await case.store.look(["mail"], ["work"])).due_in is None
    await case.clock.advance(timedelta(milliseconds=2500))
    assert (await case.store.look(["default"], ["work"])).due_in == timedelta(milliseconds=6500)


async def test_running_and_final_jobs_do_not_count(case: StoreCase) -> None:
    for state in JobState:
        if state is not JobState.READY:
            await in_state(case, state)
    assert (await case.store.look(["default"], ["work"])).due_in is None


@needs(Part.LOSSES, Part.SUSPECTS)
async def test_suspects_count_only_if_suspects_are_wanted(case: StoreCase) -> None:
    await lost(case, 2)
    assert (await case.store.look(["default"], ["work"])).due_in is None
    assert (await case.store.look(["default"], ["work"])).suspect_due_in == timedelta(0)
    assert (await case.store.look(["default"], ["other"])).suspect_due_in is None
    assert (await case.store.look(["mail"], ["work"])).suspect_due_in is None
    leased = await claimed(case, wants(suspects=True))
    await finished(case, leased.lease, ENDINGS["snooze"])
    await enqueued(case, delay=SECOND)
    assert (await case.store.look(["default"], ["work"])).suspect_due_in == 5 * SECOND
    assert (await case.store.look(["default"], ["work"])).due_in == SECOND
