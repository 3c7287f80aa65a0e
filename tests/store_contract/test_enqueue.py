"""enqueue: all jobs or none, each once, and never due before the store's current time."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob
from holdfast.domain.job import JobState, NewJob
from holdfast.domain.json_text import Json
from holdfast.store.parts import Part
from tests.databases import StoreCase
from tests.store_contract.steps import (
    SECOND,
    START,
    all_claimable,
    enqueued,
    everything,
    job,
    needs,
    running,
    shown,
    wants,
)


@needs(Part.KEYS, Part.QUEUES)
async def test_a_new_job_is_ready_and_shows_all_its_options(case: StoreCase) -> None:
    new = job(
        kind="invoice.send",
        payload=Json('{"invoice": 17}'),
        queue="mail",
        priority=3,
        tenant="acme",
        correlation_id="request-1",
        max_attempts=7,
        key="invoice-17",
        headers=Json('{"trace": "abc"}'),
    )
    assert await case.store.enqueue([new]) == [Enqueued(new.id, is_new=True)]
    found = (await shown(case, new.id)).as_dict()
    assert found == {
        "id": str(new.id),
        "kind": "invoice.send",
        "queue": "mail",
        "priority": 3,
        "state": JobState.READY,
        "payload": {"invoice": 17},
        "headers": {"trace": "abc"},
        "tenant": "acme",
        "correlation_id": "request-1",
        "key": "invoice-17",
        "attempt": 0,
        "losses": 0,
        "max_attempts": 7,
        "created_at": START.isoformat(),
        "run_at": START.isoformat(),
        "started_at": None,
        "finished_at": None,
        "fence": None,
        "holder": None,
        "lease_until": None,
        "cancel_requested": False,
        "result": None,
        "progress": None,
        "errors": [],
        "suspicion": 0,
    }


async def test_enqueueing_no_jobs_does_nothing(case: StoreCase) -> None:
    assert await case.store.enqueue([]) == []


@needs(Part.KEYS)
async def test_answers_are_in_the_order_given(case: StoreCase) -> None:
    jobs = [job(key=key) for key in ("c", "a", None, "b")]
    assert await case.store.enqueue(jobs) == [Enqueued(each.id, is_new=True) for each in jobs]


async def test_jobs_are_claimed_in_the_order_given(case: StoreCase) -> None:
    jobs = [job() for _ in range(20)]
    await case.store.enqueue(jobs)
    assert await all_claimable(case) == [each.id for each in jobs]


async def test_a_run_at_in_the_past_becomes_now(case: StoreCase) -> None:
    id = await enqueued(case, run_at=START - timedelta(days=1))
    assert (await shown(case, id)).run_at == START


async def test_a_run_at_in_the_future_is_kept(case: StoreCase) -> None:
    id = await enqueued(case, run_at=START + SECOND)
    assert (await shown(case, id)).run_at == START + SECOND


@pytest.mark.parametrize("key", [None, pytest.param("invoice-17", marks=needs(Part.KEYS))])
async def test_a_delay_counts_from_the_store_s_now(case: StoreCase, key: str | None) -> None:
    id = await enqueued(case, delay=timedelta(minutes=5), key=key)
    found = await shown(case, id)
    assert (found.created_at, found.run_at) == (START, START + timedelta(minutes=5))


async def test_each_job_of_a_batch_has_its_own_time(case: StoreCase) -> None:
    jobs = [job(delay=SECOND), job(run_at=START + 2 * SECOND), job(), job(run_at=START - SECOND)]
    await case.store.enqueue(jobs)
    times = [(await shown(case, each.id)).run_at for each in jobs]
    assert times == [START + SECOND, START + 2 * SECOND, START, START]


async def test_an_id_that_exists_is_refused(case: StoreCase) -> None:
    id = await enqueued(case, payload=Json('{"first": true}'))
    before = await everything(case)
    with pytest.raises(DuplicateJob, match=f"{id}.*exists"):
        await case.store.enqueue([job(id=id)])
    assert await everything(case) == before


@pytest.mark.parametrize("key", [None, pytest.param("invoice-17", marks=needs(Part.KEYS))])
async def test_an_id_given_twice_at_once_is_refused(case: StoreCase, key: str | None) -> None:
    id = uuid4()
    with pytest.raises(DuplicateJob):
        await case.store.enqueue([job(id=id), job(id=id, key=key)])
    assert await everything(case) == []


async def test_the_id_of_a_running_job_is_refused(case: StoreCase) -> None:
    leased = await running(case)
    before = await everything(case)
    with pytest.raises(DuplicateJob):
        await case.store.enqueue([job(id=leased.id)])
    assert await everything(case) == before


@pytest.mark.parametrize("key", [None, "invoice-17"])
@needs(Part.KEYS)
async def test_one_duplicate_rejects_the_whole_batch(case: StoreCase, key: str | None) -> None:
    id = await enqueued(case)
    with pytest.raises(DuplicateJob):
        await case.store.enqueue([job(key=key), job(id=id), job()])
    assert [found.id for found in await everything(case)] == [id]
    # Nothing of the refused batch was kept, not even its key.
    assert await case.store.enqueue([again := job(key="invoice-17")]) == [Enqueued(again.id, is_new=True)]


@needs(Part.KEYS)
async def test_enqueueing_an_existing_key_returns_its_job(case: StoreCase) -> None:
    id = await enqueued(case, key="invoice-17")
    before = await everything(case)
    assert await case.store.enqueue([job(key="invoice-17", priority=0)]) == [Enqueued(id, is_new=False)]
    assert await everything(case) == before


@needs(Part.KEYS)
async def test_a_key_repeated_in_a_batch_returns_the_first_job(case: StoreCase) -> None:
    first, second, other = job(key="a"), job(key="a"), job(key="b")
    answers = await case.store.enqueue([first, second, other])
    assert answers == [Enqueued(first.id, True), Enqueued(first.id, False), Enqueued(other.id, True)]
    assert {found.id for found in await everything(case)} == {first.id, other.id}


@needs(Part.KEYS)
async def test_an_existing_key_returns_its_job_even_for_the_same_id(case: StoreCase) -> None:
    id = await enqueued(case, key="invoice-17")
    assert await case.store.enqueue([job(id=id, key="invoice-17")]) == [Enqueued(id, is_new=False)]


@pytest.mark.parametrize(
    "new",
    [job(key="invoice-17", tenant="acme"), job(key="invoice-17", kind="remind"), job(key="invoice-18")],
    ids=["another tenant", "another kind", "another key"],
)
@needs(Part.KEYS)
async def test_a_key_belongs_to_one_tenant_and_kind(case: StoreCase, new: NewJob) -> None:
    await enqueued(case, key="invoice-17")
    assert await case.store.enqueue([new]) == [Enqueued(new.id, is_new=True)]


@needs(Part.KEYS)
async def test_a_key_does_not_depend_on_the_queue(case: StoreCase) -> None:
    id = await enqueued(case, key="invoice-17")
    assert await case.store.enqueue([job(key="invoice-17", queue="mail")]) == [Enqueued(id, is_new=False)]


@needs(Part.KEYS)
async def test_a_key_is_kept_while_its_job_is_kept(case: StoreCase) -> None:
    id = await enqueued(case, key="invoice-17")
    await case.store.cancel([id])
    assert await case.store.enqueue([job(key="invoice-17")]) == [Enqueued(id, is_new=False)]


@needs(Part.KEYS)
async def test_a_job_without_a_correlation_id_uses_its_own_id(case: StoreCase) -> None:
    id = await enqueued(case)
    keyed = await enqueued(case, key="a")
    assert [(await shown(case, each)).correlation_id for each in (id, keyed)] == [str(id), str(keyed)]


async def test_thousands_of_jobs_are_enqueued_at_once(case: StoreCase) -> None:
    jobs = [job() for _ in range(3000)]
    answers = await case.store.enqueue(jobs)
    assert [answer.id for answer in answers] == [each.id for each in jobs]
    assert (await case.reader.count())[JobState.READY] == 3000


async def test_the_smallest_and_the_largest_id_are_valid(case: StoreCase) -> None:
    ids = [UUID(int=1), UUID(int=2**128 - 1)]
    await case.store.enqueue([job(id=id) for id in ids])
    assert await all_claimable(case) == ids


@needs(Part.KEYS, Part.QUEUES)
async def test_names_of_the_maximum_length_are_kept(case: StoreCase) -> None:
    # Three-byte characters in an order that cannot be compressed: 2,490 bytes for tenant, kind and key.
    letters = [chr(0x4E00 + (number * 7919) % 20_000) for number in range(500)]
    new = job(
        kind="".join(letters[:200]),
        tenant="".join(letters[:200]),
        key="".join(letters[:430]),
        queue="".join(letters[:100]),
        correlation_id="".join(letters[:200]),
    )
    assert await case.store.enqueue([new]) == [Enqueued(new.id, is_new=True)]
    assert await case.store.enqueue([job(kind=new.kind, tenant=new.tenant, key=new.key)]) == [Enqueued(new.id, False)]
    found = await shown(case, new.id)
    assert (found.kind, found.tenant, found.key, found.queue) == (new.kind, new.tenant, new.key, new.queue)
    assert [each.id for each in await case.store.claim(wants(new.kind, queues=(new.queue,)))] == [new.id]


async def test_a_job_may_be_delayed_until_the_latest_allowed_time(case: StoreCase) -> None:
    last = datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    id = await enqueued(case, run_at=last)
    assert (await shown(case, id)).run_at == last
    assert (await case.store.look(["default"], ["work"])).due_in == last - START
    assert await all_claimable(case) == []
