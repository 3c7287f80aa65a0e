"""Lost leases make a job a suspect if other jobs ran in the worker; only crashes while it runs alone kill a job."""

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import DEFAULT_CRASHES, SUSPECT
from holdfast.store.contract import Fenced, Rescued, Shard
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    ENDINGS,
    LEASE,
    OTHER_HOLDER,
    SECOND,
    claimed,
    crash,
    enqueued,
    error_dicts,
    finished,
    lost,
    needs,
    running,
    shown,
    stranger,
    wants,
)

pytestmark = needs(Part.LOSSES, Part.SUSPECTS)
SUSPECTS = wants(suspects=True)


async def test_leases_lost_in_company_make_a_job_a_suspect_and_nothing_worse(case: StoreCase) -> None:
    id = await lost(case, 10)
    found = await shown(case, id)
    assert (found.state, found.attempt, found.losses, found.suspicion) == (JobState.READY, 10, 10, SUSPECT)


async def test_a_suspect_that_only_waited_for_its_turn_is_not_blamed_for_the_loss(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    await crash(case, crash_limit=9)
    await case.clock.advance(SECOND)
    await claimed(case, SUSPECTS)
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(id, JobState.READY)]
    found = await shown(case, id)
    assert (found.losses, found.suspicion, found.run_at) == (SUSPECT + 2, SUSPECT + 1, await case.clock.now())


@needs(Part.DEAD)
async def test_a_job_that_reached_its_crash_limit_is_dead(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    await crash(case, crash_limit=2)
    await case.clock.advance(SECOND)
    leased = await claimed(case, SUSPECTS)
    await case.store.run_alone(leased.lease, 2)
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(id, JobState.DEAD)]
    found, now = await shown(case, id), await case.clock.now()
    assert (found.state, found.attempt, found.losses) == (JobState.DEAD, 4, 4)
    assert (found.started_at, found.finished_at, found.fence) == (now - LEASE, now, None)
    assert error_dicts(found)[-1]["code"] == "LEASE_LOST"
    assert await finished(case, leased.lease, ENDINGS["succeed"]) is Fenced.STALE
    assert await case.store.claim(SUSPECTS) == await case.store.claim(wants()) == []


async def test_the_job_waits_longer_after_each_crash_up_to_a_minute(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    rests = []
    for _ in range(9):
        await crash(case, crash_limit=20)
        run_at = (await shown(case, id)).run_at
        assert run_at is not None
        rests.append((run_at - await case.clock.now()).total_seconds())
        assert await case.store.claim(SUSPECTS) == []
        await case.clock.advance(timedelta(minutes=1))
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_an_attempt_that_its_worker_survived_does_not_count(case: StoreCase) -> None:
    """The note that the job runs alone is removed with the lease, however the lease ends."""
    id = await lost(case, SUSPECT)
    for ending in ("retry", "snooze", "interrupt"):
        leased = await claimed(case, SUSPECTS)
        await case.store.run_alone(leased.lease, 1)
        await finished(case, leased.lease, ENDINGS[ending])
        await case.clock.advance(5 * SECOND)
    leased = await claimed(case, SUSPECTS)
    await case.store.run_alone(leased.lease, 1)
    await case.store.release([leased.lease])
    await claimed(case, SUSPECTS)
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(id, JobState.READY)]
    assert (await shown(case, id)).suspicion == SUSPECT


@needs(Part.CANCEL_REQUESTS, Part.CANCELED)
async def test_a_request_to_cancel_takes_precedence_over_the_last_crash(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    leased = await claimed(case, SUSPECTS)
    await case.store.run_alone(leased.lease, 1)
    await case.store.cancel([id])
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(id, JobState.CANCELED)]
    assert (await shown(case, id)).state is JobState.CANCELED


async def test_only_its_own_claim_can_record_that_a_job_runs_alone(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    lease = (await claimed(case, SUSPECTS)).lease
    assert await case.store.run_alone(stranger(lease), 1) is Fenced.STALE
    await case.clock.advance(LEASE)
    assert await case.store.rescue(10) == [Rescued(id, JobState.READY)]
    assert await case.store.run_alone(lease, 1) is Fenced.STALE
    lease = (await claimed(case, SUSPECTS)).lease
    await finished(case, lease, ENDINGS["succeed"])
    assert await case.store.run_alone(lease, 1) is Fenced.ALREADY


# One worker at a time


@needs(Part.ANY_KIND)
async def test_suspects_are_not_handed_out_while_another_worker_has_some(case: StoreCase) -> None:
    first, second = await lost(case, 2, kind="a"), await lost(case, 2, kind="b")
    mine = await claimed(case, wants("a", suspects=True))
    assert mine.id == first
    others = wants("a", "b", suspects=True, holder=OTHER_HOLDER)
    assert await case.store.claim(others) == []
    await case.store.release([mine.lease])
    assert [each.id for each in await case.store.claim(others)] == [first, second]


@needs(Part.ANY_KIND)
async def test_a_suspect_with_an_expired_lease_does_not_block_other_suspects(case: StoreCase) -> None:
    first, second = await lost(case, 2, kind="a"), await lost(case, 2, kind="b")
    await claimed(case, wants("a", suspects=True))
    await case.clock.advance(LEASE)
    leased = await claimed(case, wants("a", "b", suspects=True, holder=OTHER_HOLDER))
    assert (leased.id, leased.id != first) == (second, True)


@needs(Part.QUEUES)
async def test_suspects_of_other_queues_do_not_block_a_claim(case: StoreCase) -> None:
    mail, of_mail = await enqueued(case, queue="mail"), wants(queues=("mail",))
    for _ in range(SUSPECT):
        await claimed(case, of_mail)
        await case.clock.advance(LEASE)
        await case.store.rescue(10)
    await lost(case, SUSPECT)
    await claimed(case, SUSPECTS)
    assert (await claimed(case, replace(of_mail, suspects=True))).id == mail


async def test_a_claim_of_suspects_takes_several_and_no_other_job(case: StoreCase) -> None:
    plain = await enqueued(case, delay=timedelta(hours=1))
    ids = [await lost(case, 2) for _ in range(3)]
    await case.clock.advance(timedelta(hours=1))
    leased = await case.store.claim(SUSPECTS)
    assert [each.id for each in leased] == ids
    assert (await claimed(case)).id == plain


async def test_suspects_of_another_shard_block_a_claim_too(case: StoreCase) -> None:
    """All suspects of a fleet run alone, and one worker at a time is enough."""
    ids = [await lost(case, 2) for _ in range(8)]
    shards = [Shard(index, 2) for index in range(2)]
    of_shard = {shard: [id for id in ids if shard.has(id)] for shard in shards}
    if not all(of_shard.values()):
        pytest.skip("all ids are of one shard")
    assert len(await case.store.claim(replace(SUSPECTS, shard=shards[0]))) == len(of_shard[shards[0]])
    assert await case.store.claim(replace(SUSPECTS, shard=shards[1])) == []


# Absolution


@needs(Part.WHOLE_ERRORS)
async def test_a_lease_lost_by_a_living_worker_no_longer_counts(case: StoreCase) -> None:
    leased = await running(case)
    await case.clock.advance(LEASE)
    await case.store.rescue(10)
    assert (await shown(case, leased.id)).suspicion == 1
    await case.store.absolve([leased.lease])
    found = await shown(case, leased.id)
    assert (found.suspicion, found.losses, found.attempt) == (0, 1, 1)


@needs(Part.WHOLE_ERRORS)
async def test_each_loss_is_absolved_once(case: StoreCase) -> None:
    id = await lost(case, 1)
    lease = (await claimed(case)).lease
    await case.clock.advance(LEASE)
    await case.store.rescue(10)
    for _ in range(3):
        await case.store.absolve([lease, lease])
        assert (await shown(case, id)).suspicion == 1
    assert (await claimed(case)).id == id


@needs(Part.WHOLE_ERRORS)
async def test_a_waiting_or_running_suspect_is_absolved(case: StoreCase) -> None:
    """This includes a suspect that runs alone."""
    id = await lost(case, 1)
    lease = (await claimed(case)).lease
    await case.clock.advance(LEASE)
    await case.store.rescue(10)
    again = await claimed(case, SUSPECTS)
    await case.store.absolve([lease])
    assert (await shown(case, id)).suspicion == 1
    await finished(case, again.lease, ENDINGS["retry"])
    await case.clock.advance(5 * SECOND)
    assert (await claimed(case)).id == id


@needs(Part.WHOLE_ERRORS)
async def test_a_crash_no_longer_counts_if_its_worker_is_alive(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    leased = await crash(case, crash_limit=2)
    assert (await shown(case, id)).suspicion == SUSPECT + 1
    await case.store.absolve([leased.lease])
    assert (await shown(case, id)).suspicion == SUSPECT
    await case.clock.advance(SECOND)
    await crash(case, crash_limit=2)
    assert (await shown(case, id)).state is JobState.READY


@needs(Part.WHOLE_ERRORS)
async def test_a_loss_that_was_not_counted_cannot_be_absolved(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    lease = (await claimed(case, SUSPECTS)).lease
    await case.clock.advance(LEASE)
    await case.store.rescue(10)
    await case.store.absolve([lease, stranger(lease)])
    assert (await shown(case, id)).suspicion == SUSPECT


@needs(Part.WHOLE_ERRORS)
async def test_absolving_does_not_affect_a_final_job_or_its_retry(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    leased = await crash(case, crash_limit=1)
    before = await shown(case, id)
    await case.store.absolve([leased.lease])
    assert await shown(case, id) == before
    await case.store.retry([id])
    await claimed(case)
    await case.clock.advance(LEASE)
    await case.store.rescue(10)
    await case.store.absolve([leased.lease])
    assert (await shown(case, id)).suspicion == 1


async def test_absolving_no_leases_does_nothing(case: StoreCase) -> None:
    await case.store.absolve([])


@needs(Part.WHOLE_ERRORS)
async def test_a_job_that_never_crashed_a_worker_survives_any_number_of_pauses(case: StoreCase) -> None:
    id = await lost(case, SUSPECT)
    for _ in range(3 * DEFAULT_CRASHES):
        leased = await crash(case, crash_limit=1 + DEFAULT_CRASHES)
        await case.store.absolve([leased.lease])
        await case.clock.advance(timedelta(minutes=1))
    found = await shown(case, id)
    assert (found.state, found.suspicion) == (JobState.READY, SUSPECT)
