"""delete: remove final jobs at a person's request."""

from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.job import IfExists, JobState
from holdfast.domain.json_text import Json
from holdfast.store.contract import Canceling, Deleting, Fenced, Finish, Renewal, Retrying
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    ENDINGS,
    LEASE,
    SECOND,
    claimed,
    dead_of_crashes,
    enqueued,
    everything,
    finished,
    in_state,
    job,
    needs,
    running,
    shown,
)

pytestmark = needs(Part.DELETION)

FINAL = [state for state in JobState if state.is_final]


@pytest.mark.parametrize("state", FINAL)
async def test_only_the_named_final_job_is_deleted(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, tenant="acme", key="report")
    other = await in_state(case, state, tenant="acme", key="other")
    before = await shown(case, other)
    assert await case.store.delete([id]) == [Deleting.DELETED]
    assert await case.reader.get(id) is None
    assert await everything(case) == [before]
    assert (await case.reader.count())[state] == 1
    assert await case.store.delete([id]) == [Deleting.UNKNOWN]
    assert await case.store.retry([id]) == [Retrying.UNKNOWN]
    assert await case.store.cancel([id]) == [Canceling.UNKNOWN]


@pytest.mark.parametrize("state", [JobState.READY, JobState.RUNNING])
async def test_a_live_job_stays_as_it_is(case: StoreCase, state: JobState) -> None:
    id = await in_state(case, state, key="report")
    before = await everything(case)
    assert await case.store.delete([id]) == [Deleting.LIVE]
    assert await everything(case) == before
    assert not (await case.store.enqueue([job(key="report")]))[0].is_new


@pytest.mark.parametrize("window", [None, timedelta(days=1)], ids=["no window", "a window"])
@pytest.mark.parametrize("if_exists", list(IfExists))
async def test_the_key_of_a_deleted_job_is_free(case: StoreCase, window: timedelta | None, if_exists: IfExists) -> None:
    id = await in_state(case, JobState.DEAD, key="report", window=window)
    await case.store.delete([id])
    assert await case.reader.find("work", "report") is None
    again = job(key="report", if_exists=if_exists)
    assert await case.store.enqueue([again]) == [Enqueued(again.id, is_new=True)]


async def test_a_key_that_was_taken_over_stays_with_its_new_job(case: StoreCase) -> None:
    old = await in_state(case, JobState.FAILED, key="report")
    (newer,) = await case.store.enqueue([job(key="report", if_exists=IfExists.KEEP_LIVE)])
    assert await case.store.delete([old]) == [Deleting.DELETED]
    assert await case.store.enqueue([job(key="report")]) == [Enqueued(newer.id, is_new=False)]


async def test_each_id_gets_its_answer_and_a_duplicate_gets_the_same(case: StoreCase) -> None:
    dead = await in_state(case, JobState.DEAD)
    ready = await enqueued(case)
    assert await case.store.delete([ready, dead, uuid4(), dead]) == [
        Deleting.LIVE,
        Deleting.DELETED,
        Deleting.UNKNOWN,
        Deleting.DELETED,
    ]
    assert await case.store.delete([]) == []


async def test_a_new_job_with_the_id_of_a_deleted_one_does_not_inherit_its_errors_or_progress(
    case: StoreCase,
) -> None:
    leased = await running(case, key="report")
    await case.store.renew([Renewal(leased.lease, LEASE, Json('"half"'))])
    await finished(case, leased.lease, ENDINGS["fail"])
    await case.store.delete([leased.id])
    assert await enqueued(case, id=leased.id) == leased.id
    found = await shown(case, leased.id)
    assert (found.errors, found.progress, found.key) == ((), None, None)


async def test_a_stale_worker_cannot_restore_a_deleted_job(case: StoreCase) -> None:
    leased = await running(case)
    await finished(case, leased.lease, ENDINGS["fail"])
    await case.store.delete([leased.id])
    assert await case.store.finish([Finish(leased.lease, ENDINGS["retry"])]) == [Fenced.STALE]
    assert await case.store.release([leased.lease]) == [Fenced.STALE]
    await case.store.absolve([leased.lease])
    assert await everything(case) == []


async def test_a_retried_dead_letter_can_be_deleted_after_it_ends_again(case: StoreCase) -> None:
    id = await dead_of_crashes(case)
    await case.store.retry([id])
    assert await case.store.delete([id]) == [Deleting.LIVE]
    leased = await claimed(case)
    await case.clock.advance(SECOND)
    await finished(case, leased.lease, ENDINGS["succeed"])
    assert await case.store.delete([id]) == [Deleting.DELETED]
    assert dict(await case.reader.count()) == dict.fromkeys(JobState, 0)
