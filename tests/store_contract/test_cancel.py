"""cancel: waiting jobs and dead letters end now, running jobs are asked to stop, other final jobs stay as they are."""

from uuid import uuid4

import pytest

from holdfast.domain.job import JobState
from holdfast.store.contract import Canceling
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    LEASE,
    SECOND,
    START,
    all_claimable,
    claimed,
    enqueued,
    error_dicts,
    everything,
    in_state,
    lost,
    needs,
    running,
    shown,
    told_apart,
    wants,
)


@needs(Part.CANCELED, Part.ENDS)
async def test_a_waiting_job_ends_canceled(case: StoreCase) -> None:
    id = await enqueued(case, delay=SECOND)
    await case.clock.advance(2 * SECOND)
    assert await case.store.cancel([id]) == [Canceling.CANCELED]
    found = await shown(case, id)
    assert (found.state, found.attempt, found.losses) == (JobState.CANCELED, 0, 0)
    assert (found.started_at, found.finished_at, found.run_at) == (None, START + 2 * SECOND, None)
    assert (found.fence, found.errors) == (None, ())
    assert await all_claimable(case) == []


@needs(Part.LOSSES, Part.ERROR_HISTORY)
async def test_a_waiting_job_keeps_its_counts_and_errors(case: StoreCase) -> None:
    id = await lost(case, 2)
    assert await case.store.cancel([id]) == [Canceling.CANCELED]
    found = await shown(case, id)
    assert (found.attempt, found.losses, len(error_dicts(found))) == (2, 2, 2)
    assert await case.store.claim(wants(suspects=True)) == []


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.DEAD])
@needs(Part.KEYS, Part.TENANTS, Part.CANCELED)
async def test_a_dead_letter_ends_canceled_and_keeps_its_history(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, tenant="acme", key="a", max_attempts=3)
    before = (await shown(case, id)).as_dict()
    await case.clock.advance(SECOND)
    assert await case.store.cancel([id]) == [Canceling.CANCELED]
    after = (await shown(case, id)).as_dict()
    assert {name for name in after if after[name] != before[name]} == {"state", "finished_at", "fence"}
    assert (after["state"], after["finished_at"]) == (JobState.CANCELED, (START + SECOND).isoformat())


@needs(Part.CANCEL_REQUESTS)
async def test_a_running_job_is_asked_to_cancel(case: StoreCase) -> None:
    leased = await running(case)
    before = (await shown(case, leased.id)).as_dict()
    assert await case.store.cancel([leased.id]) == [Canceling.REQUESTED]
    after = (await shown(case, leased.id)).as_dict()
    assert {name for name in after if after[name] != before[name]} == {"cancel_requested"}
    assert await case.store.cancel([leased.id]) == [Canceling.REQUESTED]


@pytest.mark.parametrize("state", told_apart([JobState.SUCCEEDED, JobState.CANCELED]))
async def test_other_final_jobs_stay_as_they_are(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state)
    before = await everything(case)
    assert await case.store.cancel([id]) == [Canceling.FINAL]
    assert await everything(case) == before


@needs(Part.CANCEL_REQUESTS)
async def test_a_request_to_cancel_does_not_outlive_its_claim(case: StoreCase) -> None:
    leased = await running(case)
    await case.store.cancel([leased.id])
    await case.clock.advance(LEASE)
    await case.store.rescue(10)
    await case.store.retry([leased.id])
    await claimed(case)
    assert not (await shown(case, leased.id)).cancel_requested


@needs(Part.CANCEL_REQUESTS)
async def test_each_of_many_jobs_gets_its_own_answer(case: StoreCase) -> None:
    ids = [await in_state(case, state) for state in (JobState.DEAD, JobState.RUNNING, JobState.SUCCEEDED)]
    ids += [uuid4(), await enqueued(case)]
    answers = [
        Canceling.CANCELED,
        Canceling.REQUESTED,
        Canceling.FINAL,
        Canceling.UNKNOWN,
        Canceling.CANCELED,
    ]
    assert await case.store.cancel(ids) == answers


async def test_a_job_named_twice_is_canceled_once(case: StoreCase) -> None:
    id = await enqueued(case)
    assert await case.store.cancel([id, id]) == [Canceling.CANCELED, Canceling.CANCELED]


async def test_canceling_no_jobs_does_nothing(case: StoreCase) -> None:
    assert await case.store.cancel([]) == []
