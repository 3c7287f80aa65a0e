"""renew: extends leases that are still held, reports those that are lost, and carries cancel requests and progress."""

from datetime import timedelta
from uuid import uuid4

from holdfast.domain.job import JobState
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Renewal, Renewed
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    ENDINGS,
    LEASE,
    OTHER_HOLDER,
    SECOND,
    START,
    claimed,
    everything,
    finished,
    needs,
    running,
    shown,
    wants,
)


async def test_a_renewal_counts_from_the_store_s_now(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(10 * SECOND)
    answers = await case.store.renew([Renewal(leased.lease, timedelta(minutes=2))])
    assert answers == [Renewed(leased.lease, Fenced.DONE)]
    assert (await shown(case, leased.id)).lease_until == START + timedelta(minutes=2, seconds=10)


async def test_a_renewal_changes_only_the_end_of_the_lease(case: StoreCase) -> None:
    leased = await running(case)
    before = (await shown(case, leased.id)).as_dict()
    await case.clock.advance(SECOND)
    await case.store.renew([Renewal(leased.lease, LEASE)])
    after = (await shown(case, leased.id)).as_dict()
    assert {name for name in after if after[name] != before[name]} == {"lease_until"}


async def test_renewing_no_leases_does_nothing(case: StoreCase) -> None:
    assert await case.store.renew([]) == []


async def test_a_renewed_lease_is_not_rescued_at_its_original_end(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(LEASE - SECOND)
    await case.store.renew([Renewal(leased.lease, LEASE)])
    await case.clock.advance(2 * SECOND)
    assert await case.store.rescue(10) == []
    assert (await shown(case, leased.id)).state is JobState.RUNNING


async def test_an_expired_lease_that_was_not_rescued_can_still_be_renewed(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(LEASE + SECOND)
    assert await case.store.renew([Renewal(leased.lease, LEASE)]) == [Renewed(leased.lease, Fenced.DONE)]
    assert await case.store.rescue(10) == []


async def test_held_and_lost_leases_are_distinguished_in_one_call(case: StoreCase) -> None:
    released, held, done = [await running(case) for _ in range(3)]
    await case.store.release([released.lease])
    await finished(case, done.lease, ENDINGS["succeed"])
    unknown = held.lease._replace(id=uuid4())
    leases = [done.lease, released.lease, unknown, held.lease]
    answers = await case.store.renew([Renewal(lease, LEASE) for lease in leases])
    assert [answer.lease for answer in answers] == leases
    assert [answer.fenced for answer in answers] == [Fenced.ALREADY, Fenced.STALE, Fenced.STALE, Fenced.DONE]


@needs(Part.CANCEL_REQUESTS)
async def test_a_request_to_cancel_is_seen_at_the_next_renewal(case: StoreCase) -> None:
    leased, other = await running(case), await running(case)
    await case.store.cancel([leased.id])
    answers = await case.store.renew([Renewal(each.lease, LEASE) for each in (leased, other)])
    assert [answer.cancel_requested for answer in answers] == [True, False]
    # It is seen again, because the first answer may have been lost.
    (again,) = await case.store.renew([Renewal(leased.lease, LEASE)])
    assert again == Renewed(leased.lease, Fenced.DONE, cancel_requested=True)


@needs(Part.PROGRESS)
async def test_progress_is_kept_until_newer_progress_arrives(case: StoreCase) -> None:
    leased = await running(case)
    await case.store.renew([Renewal(leased.lease, LEASE, Json('{"page": 1}'))])
    await case.store.renew([Renewal(leased.lease, LEASE)])
    assert (await shown(case, leased.id)).as_dict()["progress"] == {"page": 1}
    await case.store.renew([Renewal(leased.lease, LEASE, Json('{"page": 2}'))])
    assert (await shown(case, leased.id)).as_dict()["progress"] == {"page": 2}


@needs(Part.PROGRESS)
async def test_progress_outlives_the_attempt_and_the_job(case: StoreCase) -> None:
    leased = await running(case)
    await case.store.renew([Renewal(leased.lease, LEASE, Json("[1]"))])
    await finished(case, leased.lease, Transition(Move.RETRY))
    assert (await shown(case, leased.id)).as_dict()["progress"] == [1]
    again = await claimed(case)
    await finished(case, again.lease, ENDINGS["succeed"])
    assert (await shown(case, leased.id)).as_dict()["progress"] == [1]


@needs(Part.PROGRESS)
async def test_progress_of_a_later_claim_replaces_that_of_the_earlier_one(case: StoreCase) -> None:
    first = await running(case)
    await case.store.renew([Renewal(first.lease, LEASE, Json("1"))])
    await case.store.release([first.lease])
    second = await claimed(case, wants(holder=OTHER_HOLDER))
    await case.store.renew([Renewal(second.lease, LEASE, Json("2"))])
    assert (await shown(case, first.id)).as_dict()["progress"] == 2


async def test_progress_of_an_old_claim_is_not_kept(case: StoreCase) -> None:
    first = await running(case)
    await case.store.renew([Renewal(first.lease, LEASE, Json("1"))])
    await case.store.release([first.lease])
    second = await claimed(case, wants(holder=OTHER_HOLDER))
    await case.store.renew([Renewal(second.lease, LEASE, Json("2"))])
    before = await everything(case)
    (answer,) = await case.store.renew([Renewal(first.lease, LEASE, Json("3"))])
    assert answer.fenced is Fenced.STALE
    assert await everything(case) == before
