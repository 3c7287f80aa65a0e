"""A store that was restored, or failed over to a standby that lagged behind, never issues a claim twice."""

from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Renewal
from tests.databases import StoreCase
from tests.store_contract.restoring import earlier_state
from tests.store_contract.steps import ENDINGS, LEASE, claimed, enqueued, finished, shown, wants


async def test_a_job_claimed_again_after_a_restore_has_another_claim_and_a_higher_fence(
    case: StoreCase,
) -> None:
    await enqueued(case)
    restore = await earlier_state(case)
    first = (await claimed(case)).lease
    await restore()
    second = (await claimed(case)).lease
    assert second.id == first.id
    assert second.claim != first.claim
    assert second.fence > first.fence


async def test_a_claim_from_before_a_restore_cannot_affect_the_claim_after_it(case: StoreCase) -> None:
    id = await enqueued(case)
    restore = await earlier_state(case)
    first = (await claimed(case)).lease
    await restore()
    second = (await claimed(case)).lease
    (renewed,) = await case.store.renew([Renewal(first, LEASE)])
    assert renewed.fenced is Fenced.STALE
    for ending in (ENDINGS["succeed"], Transition(Move.SUCCEED), ENDINGS["retry"], ENDINGS["fail"]):
        assert await finished(case, first, ending) is Fenced.STALE
    assert await case.store.release([first]) == [Fenced.STALE]
    assert (await shown(case, id)).state is JobState.RUNNING
    assert await finished(case, second, ENDINGS["succeed"]) is Fenced.DONE


async def test_an_ending_undone_by_a_restore_is_not_already_written_by_the_next_claim(case: StoreCase) -> None:
    await enqueued(case)
    restore = await earlier_state(case)
    first = (await claimed(case)).lease
    assert await finished(case, first, Transition(Move.SUCCEED)) is Fenced.DONE
    await restore()
    second = (await claimed(case)).lease
    assert await finished(case, second, Transition(Move.SUCCEED)) is Fenced.DONE
    assert await finished(case, first, Transition(Move.SUCCEED)) is Fenced.STALE
    assert await finished(case, second, Transition(Move.SUCCEED)) is Fenced.ALREADY


async def test_a_restored_lease_still_belongs_to_its_claim(case: StoreCase) -> None:
    await enqueued(case)
    first = (await claimed(case)).lease
    restore = await earlier_state(case)
    assert await finished(case, first, Transition(Move.SUCCEED)) is Fenced.DONE
    await restore()
    assert await case.store.leases_of(first.claim) == [first]
    assert await case.store.claim(wants()) == []
    assert await finished(case, first, Transition(Move.SUCCEED)) is Fenced.DONE
