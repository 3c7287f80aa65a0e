"""retry: restart final jobs at a person's request."""

from uuid import uuid4

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.job import JobState
from holdfast.store.contract import Canceling, Retrying
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    ENDINGS,
    SECOND,
    START,
    claimed,
    dead_of_crashes,
    enqueued,
    everything,
    finished,
    in_state,
    job,
    needs,
    shown,
    wants,
)

FINAL = [state for state in JobState if state.is_final]


@pytest.mark.parametrize("state", FINAL)
@needs(Part.KEYS)
async def test_a_final_job_becomes_ready_and_starts_over(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, tenant="acme", key="a", max_attempts=3, priority=2)
    before = (await shown(case, id)).as_dict()
    await case.clock.advance(SECOND)
    assert await case.store.retry([id]) == [Retrying.READY]
    after = (await shown(case, id)).as_dict()
    new_life = {
        "state": JobState.READY,
        "attempt": 0,
        "losses": 0,
        "run_at": (START + SECOND).isoformat(),
        "started_at": None,
        "finished_at": None,
        "fence": None,
        "result": None,
    }
    assert after == {**before, **new_life}


@pytest.mark.parametrize("state", FINAL)
async def test_a_retried_job_runs_like_a_new_one(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state)
    await case.store.retry([id])
    leased = await claimed(case)
    assert (leased.id, leased.attempt, leased.losses) == (id, 1, 0)
    await finished(case, leased.lease, ENDINGS["succeed"])
    assert (await shown(case, id)).state is JobState.SUCCEEDED


@needs(Part.LOSSES, Part.SUSPECTS)
async def test_a_job_that_crashed_its_workers_is_not_a_suspect_after_a_retry(case: StoreCase) -> None:
    id = await dead_of_crashes(case)
    assert await case.store.retry([id]) == [Retrying.READY]
    assert await case.store.claim(wants(suspects=True)) == []
    assert (await claimed(case)).id == id


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING])
async def test_a_live_job_stays_as_it_is(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state)
    before = await everything(case)
    assert await case.store.retry([id]) == [Retrying.LIVE]
    assert await everything(case) == before


@needs(Part.KEYS)
async def test_a_retried_job_keeps_its_key(case: StoreCase) -> None:
    id = await in_state(case, JobState.FAILED, key="invoice-17")
    await case.store.retry([id])
    assert await case.store.enqueue([job(key="invoice-17")]) == [Enqueued(id, is_new=False)]


async def test_a_retried_job_can_be_canceled(case: StoreCase) -> None:
    id = await in_state(case, JobState.DEAD)
    await case.store.retry([id])
    assert await case.store.cancel([id]) == [Canceling.CANCELED]
    assert await case.store.retry([id]) == [Retrying.READY]


async def test_each_of_many_jobs_gets_its_own_answer(case: StoreCase) -> None:
    ids = [await in_state(case, state) for state in (*FINAL, JobState.RUNNING)]
    ids = [await enqueued(case), uuid4(), *ids]
    expected = [Retrying.LIVE, Retrying.UNKNOWN, *[Retrying.READY] * len(FINAL), Retrying.LIVE]
    assert await case.store.retry(ids) == expected


async def test_a_job_named_twice_is_retried_once(case: StoreCase) -> None:
    id = await in_state(case, JobState.FAILED)
    assert await case.store.retry([id, id]) == [Retrying.READY, Retrying.READY]


async def test_retrying_no_jobs_does_nothing(case: StoreCase) -> None:
    assert await case.store.retry([]) == []
