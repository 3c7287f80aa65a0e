"""rescue: an expired lease is lost and its job becomes ready again. test_suspects.py covers repeated losses."""

from datetime import timedelta

from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Ended, Renewal, Rescued
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    BROKEN,
    ENDINGS,
    LEASE,
    SECOND,
    START,
    claimed,
    enqueued,
    error_dicts,
    everything,
    finished,
    job,
    lease_lost,
    lost,
    needs,
    running,
    shown,
    wants,
)


async def test_a_lease_is_rescued_only_after_it_expired(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(LEASE - timedelta(microseconds=1))
    assert await case.store.rescue(10) == []
    await case.clock.advance(timedelta(microseconds=1))
    assert await case.store.rescue(10) == [Rescued(leased.id, JobState.READY)]
    assert await case.store.rescue(10) == []


@needs(Part.LOSSES, Part.WHOLE_ERRORS)
async def test_a_rescued_job_is_ready_now_and_has_one_more_loss(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(LEASE + SECOND)
    await case.store.rescue(10)
    found, now = await shown(case, leased.id), START + LEASE + SECOND
    assert (found.state, found.run_at, found.attempt, found.losses) == (JobState.READY, now, 1, 1)
    assert (found.started_at, found.fence, found.holder, found.lease_until) == (None, None, None, None)
    assert error_dicts(found) == [lease_lost(attempt=1, at=now)]


@needs(Part.LOSSES)
async def test_a_rescued_job_can_be_claimed_again(case: StoreCase) -> None:
    id = await lost(case, 1)
    again = await claimed(case)
    assert (again.id, again.attempt, again.losses) == (id, 2, 1)


@needs(Part.LOSSES, Part.ERROR_HISTORY)
async def test_losses_and_failures_are_counted_separately(case: StoreCase) -> None:
    id = await enqueued(case)
    for _ in range(3):
        leased = await claimed(case)
        await finished(case, leased.lease, Transition(Move.RETRY, error=BROKEN))
    await claimed(case)
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(id, JobState.READY)]
    found = await shown(case, id)
    assert (found.attempt, found.losses) == (4, 1)
    assert [error["code"] for error in error_dicts(found)] == ["BROKEN"] * 3 + ["LEASE_LOST"]


async def test_the_leases_that_expired_first_are_rescued_first(case: StoreCase) -> None:
    ids = []
    for seconds in (3, 1, 2):
        ids.append(await enqueued(case))
        await claimed(case, wants(lease=seconds * SECOND))
    await case.clock.advance(3 * SECOND)
    assert [rescued.id for rescued in await case.store.rescue(2)] == [ids[1], ids[2]]
    assert [rescued.id for rescued in await case.store.rescue(2)] == [ids[0]]


async def test_a_rescue_can_be_limited_to_leases_that_ended_by_some_time(case: StoreCase) -> None:
    ids = [(await running(case)).id]
    await case.clock.advance(SECOND)
    ids.append((await running(case)).id)
    await case.clock.advance(2 * LEASE)
    assert await case.store.rescue(10, Ended(START + LEASE - SECOND)) == []
    assert [rescued.id for rescued in await case.store.rescue(10, Ended(START + LEASE))] == ids[:1]
    later = START + timedelta(days=1)
    assert [rescued.id for rescued in await case.store.rescue(10, Ended(later))] == ids[1:]


async def test_a_rescue_can_be_limited_to_leases_of_some_length(case: StoreCase) -> None:
    ids = {}
    for seconds in (3, 45):
        ids[seconds] = await enqueued(case)
        leased = await claimed(case, wants(lease=seconds * SECOND))
        # Neither its age nor its renewals change the length of a lease.
        await case.clock.advance(timedelta(hours=1))
        await case.store.renew([Renewal(leased.lease, seconds * SECOND)])
    await case.clock.advance(timedelta(hours=1))
    later = START + timedelta(days=1)
    assert await case.store.rescue(10, Ended(later, timedelta(seconds=2.9))) == []
    assert [each.id for each in await case.store.rescue(10, Ended(later, timedelta(seconds=44.9)))] == [ids[3]]
    assert await case.store.rescue(10, Ended(START, timedelta(seconds=45))) == []
    assert [each.id for each in await case.store.rescue(10, Ended(later, timedelta(seconds=45)))] == [ids[45]]


async def test_no_more_jobs_than_the_limit_are_rescued(case: StoreCase) -> None:
    jobs = [job() for _ in range(5)]
    await case.store.enqueue(jobs)
    await case.store.claim(wants())
    await case.clock.advance(LEASE)
    assert await case.store.rescue(0) == []
    assert [rescued.id for rescued in await case.store.rescue(3)] == [each.id for each in jobs[:3]]
    states = await case.reader.count()
    assert (states[JobState.READY], states[JobState.RUNNING]) == (3, 2)


async def test_a_rescue_does_not_change_other_jobs(case: StoreCase) -> None:
    await enqueued(case, delay=timedelta(hours=1))
    done = await running(case)
    await finished(case, done.lease, ENDINGS["fail"])
    expiring = await running(case)
    await enqueued(case)
    await claimed(case, wants(lease=timedelta(hours=1)))
    await case.clock.advance(LEASE)
    before = [found for found in await everything(case) if found.id != expiring.id]
    assert await case.store.rescue(10) == [Rescued(expiring.id, JobState.READY)]
    assert [found for found in await everything(case) if found.id != expiring.id] == before


@needs(Part.CANCEL_REQUESTS, Part.CANCELED, Part.WHOLE_ERRORS, Part.LOSSES, Part.STARTS)
async def test_a_lost_job_that_was_asked_to_cancel_ends_canceled(case: StoreCase) -> None:
    leased = await running(case)
    await case.store.cancel([leased.id])
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(leased.id, JobState.CANCELED)]
    found, now = await shown(case, leased.id), START + LEASE
    assert (found.state, found.attempt, found.losses, found.fence) == (JobState.CANCELED, 1, 1, None)
    assert (found.started_at, found.finished_at) == (START, now)
    assert error_dicts(found) == [lease_lost(attempt=1, at=now)]
