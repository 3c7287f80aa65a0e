"""backlog: how many jobs are due in each queue, and for how long."""

from datetime import timedelta

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import JobState
from holdfast.store.contract import Backlog
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import ENDINGS, SECOND, claimed, enqueued, finished, in_state, lost, needs, wants


async def test_a_store_with_nothing_due_has_no_backlog(case: StoreCase) -> None:
    assert await case.reader.backlog() == []
    for state in JobState:
        if state is not JobState.READY:
            await in_state(case, state)
    await enqueued(case, delay=SECOND)
    assert await case.reader.backlog() == []
    await case.clock.advance(SECOND)
    assert await case.reader.backlog() == [Backlog("default", 1, timedelta(0))]


@needs(Part.RUN_ORDER)
async def test_the_oldest_is_measured_from_the_time_it_was_due(case: StoreCase) -> None:
    await enqueued(case, delay=5 * SECOND)
    await enqueued(case)
    await case.clock.advance(7 * SECOND)
    assert await case.reader.backlog() == [Backlog("default", 2, 7 * SECOND)]
    leased = await claimed(case, wants(limit=1))
    assert await case.reader.backlog() == [Backlog("default", 1, 2 * SECOND)]
    await finished(case, leased.lease, ENDINGS["snooze"])
    await case.clock.advance(5 * SECOND)
    assert await case.reader.backlog() == [Backlog("default", 2, 7 * SECOND)]


@needs(Part.QUEUES, Part.PRIORITIES, Part.ANY_KIND)
async def test_each_queue_counts_all_its_priorities_and_kinds(case: StoreCase) -> None:
    await enqueued(case, queue="mail", priority=9, kind="letter")
    await case.clock.advance(SECOND)
    for priority in (0, 5):
        for kind in ("work", "other"):
            await enqueued(case, priority=priority, kind=kind)
            await enqueued(case, priority=priority, kind=kind, delay=timedelta(days=1))
    await enqueued(case, queue="mail", priority=0)
    await enqueued(case, queue="later", delay=SECOND)
    await case.clock.advance(SECOND / 2)
    assert await case.reader.backlog() == [
        Backlog("default", 4, SECOND / 2),
        Backlog("mail", 2, 1.5 * SECOND),
    ]


@needs(Part.LOSSES)
async def test_suspects_are_part_of_the_backlog(case: StoreCase) -> None:
    await lost(case, 2)
    (backlog,) = await case.reader.backlog()
    assert backlog.due == 1


@pytest.mark.parametrize(("limit", "due", "is_more"), [(0, 0, True), (2, 2, True), (3, 3, False), (4, 3, False)])
async def test_counting_stops_at_the_limit_but_the_oldest_is_exact(
    case: StoreCase, limit: int, due: int, is_more: bool
) -> None:
    for _ in range(3):
        await enqueued(case)
        await case.clock.advance(SECOND)
    assert await case.reader.backlog(limit) == [Backlog("default", due, 3 * SECOND, is_more)]


async def test_a_negative_limit_is_refused(case: StoreCase) -> None:
    with pytest.raises(InvalidInput, match="limit: -1 is less than 0"):
        await case.reader.backlog(-1)
