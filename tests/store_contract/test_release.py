"""release: a job that is returned before it started keeps its place, as if it had never been claimed."""

from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import CANCEL_REQUESTED
from holdfast.store.contract import Fenced
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    SECOND,
    START,
    all_claimable,
    enqueued,
    error_dicts,
    job,
    lost,
    needs,
    running,
    shown,
    stored_error,
    wants,
)


async def test_a_released_job_looks_as_it_did_before_the_claim(case: StoreCase) -> None:
    id = await enqueued(case)
    before = await shown(case, id)
    await case.clock.advance(SECOND)
    (leased,) = await case.store.claim(wants())
    await case.clock.advance(SECOND)
    assert await case.store.release([leased.lease]) == [Fenced.DONE]
    assert await shown(case, id) == before


async def test_released_jobs_keep_their_place_in_the_queue(case: StoreCase) -> None:
    jobs = [job() for _ in range(5)]
    await case.store.enqueue(jobs)
    leased = await case.store.claim(wants(limit=3))
    await case.clock.advance(SECOND)
    later = await enqueued(case)
    await case.store.release([leased[1].lease, leased[0].lease])
    expected = [jobs[0].id, jobs[1].id, jobs[3].id, jobs[4].id, later]
    assert await all_claimable(case) == expected


async def test_many_leases_are_answered_in_the_order_given(case: StoreCase) -> None:
    first, second, third = [await running(case) for _ in range(3)]
    await case.store.release([second.lease])
    answers = await case.store.release([third.lease, second.lease, first.lease])
    assert answers == [Fenced.DONE, Fenced.STALE, Fenced.DONE]


async def test_releasing_no_jobs_does_nothing(case: StoreCase) -> None:
    assert await case.store.release([]) == []


@needs(Part.LOSSES, Part.SUSPECTS)
async def test_a_released_suspect_stays_a_suspect(case: StoreCase) -> None:
    id = await lost(case, 2)
    (leased,) = await case.store.claim(wants(suspects=True))
    await case.store.release([leased.lease])
    found = await shown(case, id)
    assert (found.attempt, found.losses) == (2, 2)
    assert await case.store.claim(wants()) == []


@needs(Part.CANCEL_REQUESTS, Part.CANCELED, Part.WHOLE_ERRORS)
async def test_a_released_job_that_was_asked_to_cancel_ends_canceled(case: StoreCase) -> None:
    leased = await running(case)
    await case.store.cancel([leased.id])
    assert await case.store.release([leased.lease]) == [Fenced.DONE]
    found = await shown(case, leased.id)
    assert (found.state, found.attempt) == (JobState.CANCELED, 1)
    assert error_dicts(found) == [stored_error(CANCEL_REQUESTED, attempt=1, at=START)]
    assert await case.store.release([leased.lease]) == [Fenced.ALREADY]
