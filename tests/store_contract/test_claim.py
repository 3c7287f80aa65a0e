"""claim: only due jobs, most urgent first, then first in first out, each to one holder."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.domain.claim import holder_of
from holdfast.domain.job import JobState
from holdfast.domain.json_text import Json, decode, encode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import ClaimRequest, Fenced, KindClaim
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    ENDINGS,
    FINAL_ENDINGS,
    HOLDER,
    LEASE,
    OTHER_HOLDER,
    SECOND,
    START,
    all_claimable,
    claimed,
    enqueued,
    finished,
    job,
    lost,
    needs,
    shown,
    wants,
)


@needs(Part.QUEUES, Part.ANY_KIND, Part.PRIORITIES, Part.TENANTS)
async def test_a_claim_returns_everything_that_the_handler_needs(case: StoreCase) -> None:
    id = await enqueued(
        case,
        kind="invoice.send",
        payload=Json('{"invoice": 17}'),
        headers=Json('{"trace": "abc"}'),
        queue="mail",
        priority=3,
        tenant="acme",
        correlation_id="request-1",
        max_attempts=7,
    )
    await case.clock.advance(SECOND)
    leased = await claimed(case, wants("invoice.send", queues=("mail",)))
    assert (leased.id, holder_of(leased.lease.claim)) == (id, HOLDER)
    assert (leased.kind, leased.queue, leased.priority) == ("invoice.send", "mail", 3)
    assert (leased.tenant, leased.correlation_id, leased.max_attempts) == ("acme", "request-1", 7)
    assert (decode(leased.payload), decode(leased.headers or "")) == ({"invoice": 17}, {"trace": "abc"})
    assert (leased.attempt, leased.losses) == (1, 0)
    assert leased.created_at == START


async def test_a_claimed_job_shows_its_holder_and_the_end_of_the_lease(case: StoreCase) -> None:
    id = await enqueued(case)
    await case.clock.advance(SECOND)
    leased = await claimed(case)
    found = await shown(case, id)
    assert found.state is JobState.RUNNING
    assert (found.fence, found.holder, found.lease_until) == (leased.lease.fence, HOLDER, START + SECOND + LEASE)
    assert (found.started_at, found.run_at, found.attempt) == (START + SECOND, START, 1)
    assert (found.finished_at, found.cancel_requested) == (None, False)


async def test_a_claimed_job_cannot_be_claimed_again(case: StoreCase) -> None:
    await enqueued(case)
    await claimed(case)
    assert await case.store.claim(wants(holder=OTHER_HOLDER)) == []
    assert await case.store.claim(wants(holder=HOLDER)) == []


async def test_an_expired_lease_is_not_claimable_before_it_is_rescued(case: StoreCase) -> None:
    await enqueued(case)
    await claimed(case)
    await case.clock.advance(LEASE + SECOND)
    assert await case.store.claim(wants(holder=OTHER_HOLDER)) == []


@needs(Part.PRIORITIES)
async def test_the_most_urgent_priority_goes_first(case: StoreCase) -> None:
    jobs = [job(priority=priority) for priority in (5, 9, 0, 3, 7, 1, 8, 2, 6, 4)]
    await case.store.enqueue(jobs)
    assert await all_claimable(case) == [each.id for each in sorted(jobs, key=lambda each: each.priority)]


@needs(Part.PRIORITIES)
async def test_urgency_takes_precedence_over_age(case: StoreCase) -> None:
    old = await enqueued(case, priority=5)
    await case.clock.advance(timedelta(hours=1))
    urgent = await enqueued(case, priority=4)
    assert await all_claimable(case) == [urgent, old]


@needs(Part.ANY_KIND)
async def test_jobs_of_one_priority_go_first_in_first_out_across_kinds(case: StoreCase) -> None:
    ids = []
    for kind in ("b", "a", "c", "a", "b", "c"):
        ids.append(await enqueued(case, kind=kind))
        await case.clock.advance(SECOND)
    assert await all_claimable(case, "a", "b", "c") == ids


@needs(Part.ANY_KIND)
async def test_claims_of_one_job_each_keep_first_in_first_out_order(case: StoreCase) -> None:
    ids = []
    for kind in ("b", "a", "b", "b", "a", "a"):
        ids.append(await enqueued(case, kind=kind))
        await case.clock.advance(SECOND)
    found = [(await claimed(case, wants("a", "b", limit=1))).id for _ in ids]
    assert found == ids


@needs(Part.PRIORITIES)
async def test_a_more_urgent_job_is_claimed_before_those_left_by_the_last_claim(case: StoreCase) -> None:
    first, second = await enqueued(case), await enqueued(case)
    assert (await claimed(case, wants(limit=1))).id == first
    urgent = await enqueued(case, priority=0)
    assert (await claimed(case, wants(limit=1))).id == urgent
    assert (await claimed(case, wants(limit=1))).id == second


@needs(Part.RUN_ORDER)
async def test_jobs_become_due_in_the_order_of_their_times(case: StoreCase) -> None:
    late, early = await enqueued(case, delay=3 * SECOND), await enqueued(case, delay=2 * SECOND)
    await case.clock.advance(5 * SECOND)
    assert await all_claimable(case) == [early, late]


async def test_a_limit_is_respected_and_the_rest_stays(case: StoreCase) -> None:
    jobs = [job() for _ in range(5)]
    await case.store.enqueue(jobs)
    assert [leased.id for leased in await case.store.claim(wants(limit=3))] == [each.id for each in jobs[:3]]
    assert await all_claimable(case) == [each.id for each in jobs[3:]]


@needs(Part.ANY_KIND)
async def test_each_kind_keeps_its_own_limit(case: StoreCase) -> None:
    jobs = [job(kind=kind, priority=priority) for priority in (1, 2, 3) for kind in ("a", "b", "c")]
    await case.store.enqueue(jobs)
    leased = await case.store.claim(wants("a", "b", "c", limits={"a": 1, "b": 2}))
    expected = [each.id for each in jobs if (each.kind, each.priority) not in {("a", 2), ("a", 3), ("b", 3)}]
    assert [each.id for each in leased] == expected


@needs(Part.ANY_KIND)
async def test_a_limited_kind_leaves_room_for_the_others(case: StoreCase) -> None:
    await case.store.enqueue([job(kind="a", priority=priority) for priority in range(10) for _ in range(3)])
    others = [job(kind="b", priority=9) for _ in range(3)]
    await case.store.enqueue(others)
    leased = await case.store.claim(wants("a", "b", limit=5, limits={"a": 2}))
    assert [each.kind for each in leased] == ["a", "a", "b", "b", "b"]
    assert [each.priority for each in leased] == [0, 0, 9, 9, 9]


@needs(Part.ANY_KIND)
async def test_a_kind_with_a_limit_of_zero_is_not_claimed(case: StoreCase) -> None:
    await enqueued(case, kind="a")
    other = await enqueued(case, kind="b")
    assert [each.id for each in await case.store.claim(wants("a", "b", limits={"a": 0}))] == [other]


@pytest.mark.parametrize(
    "request_nothing",
    [wants(limit=0), wants(queues=()), wants(limits={"work": 0}), wants("other"), wants(queues=("mail",))],
)
async def test_a_claim_that_wants_nothing_here_gets_nothing(case: StoreCase, request_nothing: ClaimRequest) -> None:
    id = await enqueued(case)
    assert await case.store.claim(request_nothing) == []
    assert (await shown(case, id)).attempt == 0


@needs(Part.QUEUES)
async def test_only_wanted_queues_are_claimed_and_urgency_counts_across_them(case: StoreCase) -> None:
    await enqueued(case, queue="c", priority=0)
    second = await enqueued(case, queue="a", priority=5)
    third = await enqueued(case, queue="b", priority=5)
    first = await enqueued(case, queue="b", priority=1)
    leased = await case.store.claim(wants(queues=("b", "a")))
    assert [each.id for each in leased] == [first, second, third]


async def test_a_queue_named_twice_counts_once(case: StoreCase) -> None:
    jobs = [job() for _ in range(4)]
    await case.store.enqueue(jobs)
    leased = await case.store.claim(wants(queues=("default", "default"), limit=3))
    assert [each.id for each in leased] == [each.id for each in jobs[:3]]


@needs(Part.ANY_KIND)
async def test_an_unknown_kind_stays_ready_and_visible(case: StoreCase) -> None:
    id = await enqueued(case, kind="unknown")
    assert await all_claimable(case, "work") == []
    found = await shown(case, id)
    assert (found.state, found.attempt) == (JobState.READY, 0)


async def test_a_job_is_not_claimed_before_its_time(case: StoreCase) -> None:
    id = await enqueued(case, delay=10 * SECOND)
    await case.clock.advance(10 * SECOND - timedelta(microseconds=1))
    assert await all_claimable(case) == []
    await case.clock.advance(timedelta(microseconds=1))
    assert await all_claimable(case) == [id]


async def test_the_attempt_is_counted_at_the_claim(case: StoreCase) -> None:
    id = await enqueued(case)
    for attempt in (1, 2, 3):
        leased = await claimed(case)
        assert (leased.attempt, (await shown(case, id)).attempt) == (attempt, attempt)
        await finished(case, leased.lease, ENDINGS["retry"])
        await case.clock.advance(5 * SECOND)


async def test_a_fence_rises_with_each_claim_of_a_job_however_the_last_one_ended(case: StoreCase) -> None:
    await enqueued(case)
    fences = []
    for ending in (
        Transition(Move.RELEASE),
        ENDINGS["retry"],
        ENDINGS["snooze"],
        None,
        *map(ENDINGS.get, FINAL_ENDINGS),
    ):
        leased = await claimed(case)
        fences.append(leased.lease.fence)
        if ending is None:
            await case.clock.advance(LEASE)
            await case.store.rescue(10)
        else:
            assert await finished(case, leased.lease, ending) is Fenced.DONE
            await case.clock.advance(5 * SECOND)
            await case.store.retry([leased.id])
    assert fences == sorted(set(fences))


async def test_every_request_gets_its_own_claim(case: StoreCase) -> None:
    await case.store.enqueue([job() for _ in range(4)])
    first = await case.store.claim(wants(limit=2))
    second = await case.store.claim(wants(limit=1))
    other = await case.store.claim(wants(limit=1, holder=OTHER_HOLDER))
    assert len({leased.lease.claim for leased in [*first, *second, *other]}) == 3
    assert [holder_of(leased.lease.claim) for leased in [*first, *second, *other]] == [HOLDER] * 3 + [OTHER_HOLDER]


@needs(Part.ANY_KIND)
async def test_each_kind_has_its_own_lease(case: StoreCase) -> None:
    await enqueued(case, kind="short")
    await enqueued(case, kind="long")
    leases = {"short": KindClaim(SECOND, 10), "long": KindClaim(timedelta(hours=1), 10)}
    request = replace(wants(), kinds=leases)
    untils = {leased.kind: (await shown(case, leased.id)).lease_until for leased in await case.store.claim(request)}
    assert untils == {"short": START + SECOND, "long": START + timedelta(hours=1)}


@needs(Part.LOSSES, Part.SUSPECTS)
async def test_a_job_that_lost_two_leases_is_claimed_only_as_a_suspect(case: StoreCase) -> None:
    id = await lost(case, 2)
    assert await case.store.claim(wants()) == []
    leased = await claimed(case, wants(suspects=True))
    assert (leased.id, leased.attempt, leased.losses) == (id, 3, 2)


async def test_a_job_that_lost_one_lease_is_not_a_suspect(case: StoreCase) -> None:
    id = await lost(case, 1)
    assert await case.store.claim(wants(suspects=True)) == []
    assert (await claimed(case)).id == id


@needs(Part.LOSSES, Part.SUSPECTS, Part.ANY_KIND)
async def test_a_claim_of_suspects_respects_kinds_queues_times_limits_and_order(case: StoreCase) -> None:
    ids: dict[str, UUID] = {}
    wanted = [("a1", "a", 5), ("b", "b", 4), ("a2", "a", 3), ("c", "c", 0), ("a3", "a", 9), ("a4", "a", 9)]
    for name, kind, priority in wanted:
        ids[name] = await lost(case, 2, kind=kind, priority=priority)
    leased = await case.store.claim(wants("a", "b", suspects=True, limits={"a": 2}))
    assert [each.id for each in leased] == [ids["a2"], ids["b"], ids["a1"]]
    assert await case.store.claim(wants("a", queues=("mail",), suspects=True)) == []
    for each in leased:
        await finished(case, each.lease, ENDINGS["succeed"])
    assert [each.id for each in await case.store.claim(wants("a", limit=1, suspects=True))] == [ids["a3"]]


@needs(Part.LOSSES, Part.SUSPECTS)
async def test_a_snoozed_suspect_is_not_claimed_before_its_time(case: StoreCase) -> None:
    id = await lost(case, 2)
    leased = await claimed(case, wants(suspects=True))
    await finished(case, leased.lease, ENDINGS["snooze"])
    assert await case.store.claim(wants(suspects=True)) == []
    await case.clock.advance(5 * SECOND)
    assert (await claimed(case, wants(suspects=True))).id == id


async def test_a_holder_can_list_all_its_leases(case: StoreCase) -> None:
    jobs = [job() for _ in range(5)]
    await case.store.enqueue(jobs)
    mine = await case.store.claim(wants(limit=3))
    others = await case.store.claim(wants(limit=1, holder=OTHER_HOLDER))
    assert sorted(await case.store.leases_of(HOLDER)) == sorted(leased.lease for leased in mine)
    assert await case.store.leases_of(OTHER_HOLDER) == [leased.lease for leased in others]
    await finished(case, mine[0].lease, ENDINGS["succeed"])
    await case.store.release([mine[1].lease])
    assert await case.store.leases_of(HOLDER) == [mine[2].lease]
    await case.clock.advance(LEASE)
    assert await case.store.leases_of(HOLDER) == [mine[2].lease]
    await case.store.rescue(10)
    assert await case.store.leases_of(HOLDER) == []


async def test_a_claim_ends_at_its_payload_limit_and_the_rest_stays_ready(
    case: StoreCase,
) -> None:
    jobs = [job(payload=encode("x" * 100_000)) for _ in range(5)]
    await case.store.enqueue(jobs)
    taken = await case.store.claim(replace(wants(), most_bytes=250_000))
    assert [leased.id for leased in taken] == [each.id for each in jobs[:3]]
    assert [decode(leased.payload) for leased in taken] == ["x" * 100_000] * 3
    for each in jobs[3:]:
        found = await shown(case, each.id)
        assert (found.state, found.attempt) == (JobState.READY, 0)
    assert await all_claimable(case) == [each.id for each in jobs[3:]]


async def test_a_claim_takes_one_job_however_large_it_is(case: StoreCase) -> None:
    jobs = [job(payload=encode("x" * 100_000)) for _ in range(2)]
    await case.store.enqueue(jobs)
    for each in jobs:
        assert [leased.id for leased in await case.store.claim(replace(wants(), most_bytes=1))] == [each.id]
