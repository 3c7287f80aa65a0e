"""get, list and count: what people see; and the clock that tests move."""

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job, JobState
from holdfast.store.contract import JobFilter
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import SECOND, START, enqueued, everything, in_state, needs, shown


async def test_an_unknown_id_returns_nothing(case: StoreCase) -> None:
    await enqueued(case)
    assert await case.reader.get(uuid4()) is None


@pytest.mark.parametrize("state", list(JobState))
async def test_a_list_shows_the_same_as_get(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state)
    assert await everything(case) == [await shown(case, id)]


async def test_an_empty_store_lists_and_counts_nothing(case: StoreCase) -> None:
    assert await everything(case) == []
    assert await case.reader.count() == dict.fromkeys(JobState, 0)


@needs(Part.DEAD, Part.CANCELED, Part.ANY_KIND)
async def test_jobs_are_counted_by_state(case: StoreCase) -> None:
    for number, state in enumerate(JobState):
        for _ in range(number):
            await in_state(case, state, kind=state)
    assert await case.reader.count() == {state: number for number, state in enumerate(JobState)}


@needs(Part.ANY_KIND)
async def test_the_newest_jobs_are_listed_first_across_states(case: StoreCase) -> None:
    ids = [await in_state(case, state, kind=state) for _ in range(2) for state in JobState]
    newest = sorted(ids, reverse=True)
    assert [found.id for found in await case.reader.list(JobFilter(), 100)] == newest
    assert [found.id for found in await case.reader.list(JobFilter(), 5)] == newest[:5]
    assert await case.reader.list(JobFilter(), 0) == []


_FILTERS: list[tuple[JobFilter, Callable[[Job], bool]]] = [
    (JobFilter(), lambda found: True),
    *[(JobFilter(state=state), lambda found, state=state: found.state is state) for state in JobState],
    *[(JobFilter(state=state.value), lambda found, state=state: found.state is state) for state in JobState],
    (JobFilter(queue="mail"), lambda found: found.queue == "mail"),
    (JobFilter(kind="a"), lambda found: found.kind == "a"),
    (JobFilter(tenant="acme"), lambda found: found.tenant == "acme"),
    (JobFilter(tenant=""), lambda found: found.tenant == ""),
    (JobFilter(queue="nowhere"), lambda found: False),
]


@pytest.mark.parametrize("state", ["nonsense", ""])
def test_a_filter_refuses_an_unknown_state(state: str) -> None:
    line = rf"^state: '{state}' is not one of ready, running, succeeded, failed, dead, canceled$"
    with pytest.raises(InvalidInput, match=line):
        JobFilter(state=state)


@pytest.mark.parametrize("count", [2, 100])
@needs(Part.QUEUES)
async def test_each_filter_finds_its_jobs(case: StoreCase, count: int) -> None:
    # Ready jobs come last: the other jobs are claimed on the way to their state, and a claim must find only one.
    for state in reversed(JobState):
        for queue, kind, tenant in (("default", "a", "acme"), ("mail", "a", ""), ("mail", "b", "acme")):
            await in_state(case, state, queue=queue, kind=kind, tenant=tenant)
    newest = await everything(case)
    assert len(newest) == 3 * len(JobState)
    for filter, matches in _FILTERS:
        expected = [found for found in newest if matches(found)][:count]
        assert await case.reader.list(filter, count) == expected, filter
        assert await case.reader.list_ids(filter, count) == [found.id for found in expected], filter


@needs(Part.QUEUES)
async def test_filters_can_be_combined(case: StoreCase) -> None:
    wanted = await in_state(case, JobState.FAILED, queue="mail", kind="a", tenant="acme")
    await in_state(case, JobState.DEAD, queue="mail", kind="a", tenant="acme")
    await in_state(case, JobState.FAILED, queue="default", kind="a", tenant="acme")
    await in_state(case, JobState.FAILED, queue="mail", kind="b", tenant="acme")
    await in_state(case, JobState.FAILED, queue="mail", kind="a")
    found = await case.reader.list(JobFilter(JobState.FAILED, "mail", "a", "acme"), 100)
    assert [each.id for each in found] == [wanted]


async def test_a_frozen_clock_stands_still_until_it_is_moved(case: StoreCase) -> None:
    assert [await case.clock.now(), await case.clock.now()] == [START, START]
    await case.clock.advance(timedelta(days=400, microseconds=1))
    assert await case.clock.now() == START + timedelta(days=400, microseconds=1)
    await case.clock.freeze(START)
    assert await case.clock.now() == START


async def test_a_clock_that_was_never_frozen_runs_and_can_be_moved(store_case: StoreCase) -> None:
    first = await store_case.clock.now()
    await store_case.clock.advance(timedelta(hours=1))
    second = await store_case.clock.now()
    third = await store_case.clock.now()
    assert timedelta(hours=1) <= second - first < timedelta(hours=1, minutes=1)
    assert second <= third < second + 60 * SECOND
    assert first.tzinfo is not None
