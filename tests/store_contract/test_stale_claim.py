"""A stale claim can do nothing: all verbs, on all stores, for all ways in which a claim becomes stale."""

from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

import pytest

from holdfast.domain.claim import new_claim
from holdfast.domain.job import Lease
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    BROKEN,
    ENDINGS,
    LEASE,
    OTHER_HOLDER,
    SECOND,
    claimed,
    crash,
    enqueued,
    everything,
    finished,
    lost,
    needs,
    running,
    stranger,
    wants,
)

Way = Callable[[StoreCase], Awaitable[Lease]]


async def _rescued(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    await case.clock.advance(LEASE)
    assert len(await case.store.rescue(10)) == 1
    return lease


async def _rescued_and_claimed_by_another(case: StoreCase) -> Lease:
    lease = await _rescued(case)
    await claimed(case, wants(holder=OTHER_HOLDER))
    return lease


async def _rescued_and_claimed_by_the_same(case: StoreCase) -> Lease:
    lease = await _rescued(case)
    await claimed(case)
    return lease


async def _rescued_and_finished_by_another(case: StoreCase) -> Lease:
    lease = await _rescued(case)
    again = await claimed(case, wants(holder=OTHER_HOLDER))
    assert await finished(case, again.lease, ENDINGS["succeed"]) is Fenced.DONE
    return lease


async def _buried(case: StoreCase) -> Lease:
    await lost(case, 2)
    return (await crash(case, crash_limit=1)).lease


async def _lost_and_canceled(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    await case.store.cancel([lease.id])
    await case.clock.advance(LEASE)
    assert len(await case.store.rescue(10)) == 1
    return lease


async def _retried(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    assert await finished(case, lease, Transition(Move.RETRY, error=BROKEN)) is Fenced.DONE
    return lease


async def _retried_and_claimed_by_another(case: StoreCase) -> Lease:
    lease = await _retried(case)
    await claimed(case, wants(holder=OTHER_HOLDER))
    return lease


async def _snoozed(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    assert await finished(case, lease, ENDINGS["snooze"]) is Fenced.DONE
    return lease


async def _released(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    assert await case.store.release([lease]) == [Fenced.DONE]
    return lease


async def _released_and_claimed_by_another(case: StoreCase) -> Lease:
    lease = await _released(case)
    await claimed(case, wants(holder=OTHER_HOLDER))
    return lease


async def _revived(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    assert await finished(case, lease, ENDINGS["exhaust"]) is Fenced.DONE
    await case.store.retry([lease.id])
    return lease


async def _revived_and_claimed_by_another(case: StoreCase) -> Lease:
    lease = await _revived(case)
    await claimed(case, wants(holder=OTHER_HOLDER))
    return lease


async def _given_up_as_a_dead_letter(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    assert await finished(case, lease, ENDINGS["fail"]) is Fenced.DONE
    await case.store.cancel([lease.id])
    return lease


async def _another_s(case: StoreCase) -> Lease:
    return stranger((await running(case)).lease)


async def _the_next_of_its_holder(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    return lease._replace(claim=UUID(int=lease.claim.int + 1))


async def _never_claimed(case: StoreCase) -> Lease:
    return Lease(await enqueued(case), 1, new_claim(OTHER_HOLDER))


async def _of_no_job(case: StoreCase) -> Lease:
    return (await running(case)).lease._replace(id=uuid4())


async def _of_another_job(case: StoreCase) -> Lease:
    lease = (await running(case)).lease
    return lease._replace(id=(await running(case)).id)


STALE_WAYS: dict[str, Way] = {
    "rescued": _rescued,
    "rescued and claimed by another": _rescued_and_claimed_by_another,
    "rescued and claimed by the same": _rescued_and_claimed_by_the_same,
    "rescued and finished by another": _rescued_and_finished_by_another,
    "lost in the last crash": _buried,
    "lost after a request to cancel": _lost_and_canceled,
    "retried": _retried,
    "retried and claimed by another": _retried_and_claimed_by_another,
    "snoozed": _snoozed,
    "released": _released,
    "released and claimed by another": _released_and_claimed_by_another,
    "revived by a person": _revived,
    "revived and claimed by another": _revived_and_claimed_by_another,
    "given up by a person": _given_up_as_a_dead_letter,
    "of another claim": _another_s,
    "of the next claim of its holder": _the_next_of_its_holder,
    "of a job that nobody claimed": _never_claimed,
    "of no job": _of_no_job,
    "of another job": _of_another_job,
}


async def _every_verb(case: StoreCase, lease: Lease) -> dict[str, Fenced]:
    """Send everything that a worker could send about this lease, and check that nothing changes."""
    before = await everything(case)
    answers: dict[str, Fenced] = {}
    verbs: dict[str, Callable[[], Awaitable[Fenced]]] = {
        **{f"finish: {name}": lambda name=name: finished(case, lease, ENDINGS[name]) for name in ENDINGS},  # type: ignore[misc]
        "finish: succeed without a result": lambda: finished(case, lease, Transition(Move.SUCCEED)),
        "finish among others": lambda: _finish_among_others(case, lease),
        "release": lambda: _release(case, lease),
        "renew": lambda: _renew(case, lease, None),
        "renew with progress": lambda: _renew(case, lease, Json('{"page": 99}')),
    }
    for verb, send in verbs.items():
        await case.clock.advance(SECOND)
        answers[verb] = await send()
        assert await everything(case) == before, verb
    return answers


async def _finish_among_others(case: StoreCase, lease: Lease) -> Fenced:
    unknown = lease._replace(id=uuid4())
    finishes = [Finish(unknown, ENDINGS["fail"]), Finish(lease, ENDINGS["fail"])]
    return (await case.store.finish(finishes))[1]


async def _release(case: StoreCase, lease: Lease) -> Fenced:
    (answer,) = await case.store.release([lease])
    return answer


async def _renew(case: StoreCase, lease: Lease, progress: Json | None) -> Fenced:
    (answer,) = await case.store.renew([Renewal(lease, LEASE, progress)])
    assert answer.lease == lease
    assert not answer.cancel_requested
    return answer.fenced


_NEEDED = {"lost in the last crash": Part.SUSPECTS, "lost after a request to cancel": Part.CANCEL_REQUESTS}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[needs(_NEEDED[way])] if way in _NEEDED else []) for way in STALE_WAYS]
)
async def test_a_stale_claim_can_do_nothing(case: StoreCase, way: str) -> None:
    lease = await STALE_WAYS[way](case)
    answers = await _every_verb(case, lease)
    assert answers == dict.fromkeys(answers, Fenced.STALE)


@pytest.mark.parametrize("ending", [name for name, ending in ENDINGS.items() if ending.state.is_final])
async def test_the_claim_that_finished_the_job_can_do_nothing_else(case: StoreCase, ending: str) -> None:
    lease = (await running(case)).lease
    assert await finished(case, lease, ENDINGS[ending]) is Fenced.DONE
    answers = await _every_verb(case, lease)
    assert answers == dict.fromkeys(answers, Fenced.ALREADY)


@needs(Part.CANCEL_REQUESTS)
async def test_a_claim_whose_release_canceled_the_job_can_do_nothing_else(case: StoreCase) -> None:
    lease = (await running(case)).lease
    await case.store.cancel([lease.id])
    assert await case.store.release([lease]) == [Fenced.DONE]
    answers = await _every_verb(case, lease)
    assert answers == dict.fromkeys(answers, Fenced.ALREADY)
