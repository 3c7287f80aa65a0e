"""Surveys: they find what the floors hide, and no claim waits for one."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import NewJob
from holdfast.store.contract import ClaimRequest, Shard
from holdfast.store.postgres import lanes
from holdfast.store.postgres.copying import copy_jobs
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.looks import looks_are
from tests.store_contract.steps import job, wants

PATIENCE_SECONDS = lanes._LONGEST_HIDDEN_SECONDS + 5.0
SURVEY = "first_of_lanes"

Fetch = Callable[..., Awaitable[object]]


@pytest.fixture
async def store(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    """For which looks are dear, and which has claimed all there was, from one lane. No survey is on its way."""
    looks_are("dear", monkeypatch)
    monkeypatch.setattr(lanes, "_LONGEST_HIDDEN_SECONDS", 0.25)
    async with opened_store(database.url) as store:
        await store.enqueue([job() for _ in range(3)])
        while await store.claim(wants(limit=1)):
            pass
        await asyncio.gather(*store._claiming._surveys)
        yield store


async def unhindered() -> None:
    pass


def intercepted(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, survey: Callable[[], Awaitable[None]]
) -> list[str]:
    """Do this before each survey; returns the verbs that are asked for from now on."""
    verbs: list[str] = []
    fetch: Fetch = store._claiming._fetch

    async def intercepting(verb: str, *arguments: object) -> object:
        verbs.append(verb)
        if verb == SURVEY:
            await survey()
        return await fetch(verb, *arguments)

    monkeypatch.setattr(store._claiming, "_fetch", intercepting)
    return verbs


async def claiming_until(condition: Callable[[], bool], store: PostgresStore) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "no survey began"
        await store.claim(wants(limit=1))
        await asyncio.sleep(0.005)


async def hidden_job(store: PostgresStore) -> NewJob:
    """Enqueued an hour ago in a transaction that has taken so long: all floors are past it."""
    hidden = job()
    async with store.acquired() as connection, connection.transaction():
        await copy_jobs(connection, store.schema, [hidden])
        await connection.execute(
            "UPDATE holdfast.ready SET run_at = run_at - interval '1 hour' WHERE id = $1", hidden.id
        )
    return hidden


async def test_an_urgent_job_waits_for_no_survey(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asyncio.Event()

    async def survey() -> None:
        if first.is_set():
            await asyncio.Event().wait()
        first.set()

    verbs = intercepted(store, monkeypatch, survey)
    await claiming_until(lambda: verbs.count(SURVEY) == 2, store)
    urgent = job(priority=0)
    await store.enqueue([job(), urgent])
    assert [each.id for each in await store.claim(wants(limit=1))] == [urgent.id]


async def claimed(store: PostgresStore, id: UUID, request: ClaimRequest) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while id not in [each.id for each in await store.claim(request)]:
        assert time.monotonic() < deadline, "no claim found the job"


async def test_no_claim_waits_for_a_survey(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, began = asyncio.Event(), asyncio.Event()

    async def survey() -> None:
        began.set()
        await may_go_on.wait()

    verbs = intercepted(store, monkeypatch, survey)
    await claiming_until(began.is_set, store)
    hidden, ordinary = await hidden_job(store), job()
    await store.enqueue([ordinary])
    assert [each.id for each in await store.claim(wants(limit=9))] == [ordinary.id], "only a survey finds the other"
    assert verbs.count(SURVEY) == 1, "one at a time"
    may_go_on.set()
    await claimed(store, hidden.id, wants(limit=1))


async def test_whoever_only_asks_what_is_due_is_told_of_a_hidden_job_in_time(store: PostgresStore) -> None:
    hidden = await hidden_job(store)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (due := await store.next_due(["default"], ["work"])) != timedelta(0):
        assert due is not None
        assert due <= timedelta(seconds=lanes._LONGEST_HIDDEN_SECONDS), "it is worth asking again by then"
        assert time.monotonic() < deadline
        await asyncio.sleep(due.total_seconds())
    assert [each.id for each in await store.claim(wants(limit=1))] == [hidden.id]


async def test_a_job_of_the_future_is_due_when_it_is(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_LONGEST_HIDDEN_SECONDS", 600.0)
    later = job(delay=timedelta(seconds=60))
    await store.enqueue([later])
    due = await store.next_due(["default"], ["work"])
    assert due is not None
    assert timedelta(seconds=30) < due <= timedelta(seconds=60)
    await PostgresClock(store).advance(timedelta(seconds=60))
    assert await store.next_due(["default"], ["work"]) == timedelta(0)
    assert [each.id for each in await store.claim(wants(limit=1))] == [later.id]


async def test_a_survey_that_failed_is_made_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 3

    async def survey() -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StoreUnavailable("the connection is gone")

    intercepted(store, monkeypatch, survey)
    hidden = await hidden_job(store)
    await claimed(store, hidden.id, wants(limit=1))
    assert failures < 0
    assert caplog.text.count("cannot look past the deleted rows") == 1, "said once, not each time"


async def test_a_survey_that_was_cancelled_is_made_again(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()

    async def survey() -> None:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()

    intercepted(store, monkeypatch, survey)
    await claiming_until(began.is_set, store)
    (task,) = store._claiming._surveys
    task.cancel()
    hidden = await hidden_job(store)
    await claimed(store, hidden.id, wants(limit=1))


async def test_an_idle_process_asks_seldom(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = intercepted(store, monkeypatch, unhindered)
    end = time.monotonic() + 2 * lanes._LONGEST_HIDDEN_SECONDS
    while time.monotonic() < end:
        await store.claim(wants(limit=1))
        due = await store.next_due(["default"], ["work"])
        assert due is not None
        await asyncio.sleep(due.total_seconds())
    # Two rounds of a claim and a question for each survey: when it is due, and when it has ended. That makes 15.
    assert len(verbs) <= 30


async def test_a_store_that_is_closed_leaves_no_survey_behind(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def survey() -> None:
        began.set()
        await asyncio.Event().wait()

    intercepted(store, monkeypatch, survey)
    await claiming_until(began.is_set, store)
    (task,) = store._claiming._surveys
    await store.close()
    assert task.cancelled()


async def test_a_store_whose_server_does_not_answer_a_survey_is_closed(
    store: PostgresStore, database: Database
) -> None:
    async with connected(database.url) as other, other.transaction():
        # Whoever reads the queue waits for this.
        await other.execute("LOCK TABLE holdfast.clock")
        ask = store._claiming._lanes_of(None).start_survey(time.monotonic() + 60.0, is_idle=False)
        assert ask is not None
        survey = asyncio.create_task(store._claiming._survey(store._claiming._lanes_of(None), None, ask))
        store._claiming._surveys.add(survey)
        await asyncio.sleep(0.1)
        assert not survey.done()
        await store.close()
        assert survey.done()


async def test_a_store_that_was_closed_and_opened_again_makes_surveys(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.close()
    await store.open()
    verbs = intercepted(store, monkeypatch, unhindered)
    await claiming_until(lambda: SURVEY in verbs, store)


async def test_shards_of_one_store_do_not_hide_each_other_s_jobs(store: PostgresStore) -> None:
    jobs = [job() for _ in range(40)]
    await store.enqueue(jobs)
    found: set[UUID] = set()
    # The first goes ahead, and must not take the floor of the second with it.
    for shard in (Shard(0, 2), Shard(1, 2)):
        request = replace(wants(limit=3), shard=shard)
        while more := await store.claim(request):
            found |= {each.id for each in more}
    assert found == {each.id for each in jobs}


async def test_a_hidden_job_is_found_by_its_shard(store: PostgresStore) -> None:
    requests = [replace(wants(limit=1), shard=Shard(index, 2)) for index in range(2)]
    for _ in range(3):
        for request in requests:
            await store.claim(request)
            await asyncio.gather(*store._claiming._surveys)
    hidden = await hidden_job(store)
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[UUID] = []
    while hidden.id not in found:
        assert time.monotonic() < deadline
        found += [each.id for request in requests for each in await store.claim(request)]


async def test_a_lane_that_others_claim_from_is_not_walked_again_and_again(
    store: PostgresStore, database: Database
) -> None:
    """Without a job of its own to move its floor, a process would walk over all that others have claimed."""
    memory, lane = store._claiming._lanes_of(None), lanes.Lane("default", 5, "work")
    before = memory._floors[lane]
    async with opened_store(database.url) as elsewhere:
        await PostgresClock(store).advance(timedelta(minutes=1))
        await elsewhere.enqueue([job() for _ in range(20)])
        assert len(await elsewhere.claim(wants(limit=20))) == 20
    assert memory._floors[lane] == before
    deadline = time.monotonic() + PATIENCE_SECONDS
    while memory._floors[lane] == before:
        assert time.monotonic() < deadline
        assert not await store.claim(wants(limit=1))
        await asyncio.sleep(0.005)
    assert memory._floors[lane].run_at - before.run_at > timedelta(seconds=50)
