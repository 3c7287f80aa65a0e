"""Floors never hide a job: whatever comes to lie behind one is found by the next claims.

Each story runs as usual, and again with an idle reader that keeps deleted rows from being removed and with looks that
count as dear, so that claims start from their floors and look at everything only now and then.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import pytest

from holdfast.domain.lifecycle import Event, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres import lanes
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.looks import looks_are
from tests.store_contract.steps import BROKEN, LEASE, job, wants

BACKLOG = 400


@dataclass(frozen=True, slots=True)
class Scene:
    """A store that claims from a backlog, a store of another process, and a plain connection."""

    store: PostgresStore
    elsewhere: PostgresStore
    plain: "asyncpg.Connection[asyncpg.Record]"
    asks: list[lanes.Ask]


@pytest.fixture(params=["cheap", "dear"])
async def scene(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    asks: list[lanes.Ask] = []
    first_ask = lanes.Lanes.first_ask

    def noted(memory: lanes.Lanes, *arguments: object) -> lanes.Ask:
        asks.append(first_ask(memory, *arguments))  # type: ignore[arg-type]
        return asks[-1]

    monkeypatch.setattr(lanes.Lanes, "first_ask", noted)
    looks_are(request.param, monkeypatch)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(database.url))
        elsewhere = await stack.enter_async_context(opened_store(database.url))
        plain = await stack.enter_async_context(connected(database.url))
        if request.param == "dear":
            reader = await stack.enter_async_context(connected(database.url))
            transaction = reader.transaction(isolation="repeatable_read")
            await transaction.start()
            await reader.execute("SELECT FROM holdfast.ready")
            stack.push_async_callback(transaction.rollback)
        yield Scene(store, elsewhere, plain, asks)
        if request.param == "dear":
            assert any(not ask.is_full_look for ask in asks), "no claim started from a floor, so nothing was tested"


async def moved_floor(scene: Scene) -> None:
    """A backlog, and a floor in the middle of it."""
    await scene.store.enqueue([job() for _ in range(BACKLOG)])
    taken, deadline = 0, time.monotonic() + 10.0
    while taken < 80 and time.monotonic() < deadline:
        taken += len(await scene.store.claim(wants(limit=20)))
    assert taken == 80
    await from_floors(scene)


async def from_floors(scene: Scene) -> None:
    """If looks are dear: claim until a survey has put floors, and claims start from them."""
    deadline = time.monotonic() + 10.0
    while lanes._CHEAP_SECONDS < 0 and scene.asks[-1].is_full_look:
        assert time.monotonic() < deadline
        await scene.store.claim(wants(limit=1))
        await asyncio.sleep(0.005)


async def found_soon(scene: Scene, id: UUID, *kinds: str) -> None:
    """Claim on and on until the job is there. The backlog must not be what runs out first."""
    deadline = time.monotonic() + lanes._LONGEST_HIDDEN_SECONDS + 5.0
    claims = 0
    while time.monotonic() < deadline:
        claims += 1
        if id in [each.id for each in await scene.store.claim(wants(*(kinds or ("work",)), limit=1))]:
            assert lanes._CHEAP_SECONDS < 0 or claims == 1, "a full look claims what is first in the queue"
            return
    raise AssertionError(f"{claims} claims did not find the job")


async def test_a_job_that_was_committed_late_is_found(scene: Scene) -> None:
    transaction = scene.plain.transaction()
    await transaction.start()
    late = await scene.plain.fetchval("SELECT id FROM holdfast.enqueue('work', '{}')")
    await moved_floor(scene)
    await transaction.commit()
    await found_soon(scene, late)


async def test_a_released_job_is_found(scene: Scene) -> None:
    await scene.store.enqueue([job()])
    (leased,) = await scene.store.claim(wants())
    await moved_floor(scene)
    assert await scene.elsewhere.release([leased.lease]) == [Fenced.DONE]
    await found_soon(scene, leased.id)


async def test_a_job_that_this_store_released_is_found_by_its_next_claim(scene: Scene) -> None:
    await scene.store.enqueue([job()])
    (leased,) = await scene.store.claim(wants())
    await moved_floor(scene)
    assert await scene.store.release([leased.lease]) == [Fenced.DONE]
    assert [each.id for each in await scene.store.claim(wants(limit=1))] == [leased.id]


async def test_a_rescued_job_is_found(scene: Scene) -> None:
    clock = PostgresClock(scene.store)
    # A clock that stands still gives the rescued job the time of the floor, and an id before it.
    await clock.freeze(await clock.now())
    await scene.store.enqueue([job()])
    (leased,) = await scene.store.claim(wants(lease=LEASE))
    await scene.store.enqueue([job() for _ in range(BACKLOG)])
    await clock.advance(LEASE)
    assert len(await scene.store.claim(wants(limit=20))) == 20
    await from_floors(scene)
    assert [rescued.id for rescued in await scene.elsewhere.rescue(1)] == [leased.id]
    await scene.plain.execute("UPDATE holdfast.ready SET run_at = run_at - interval '1 hour' WHERE id = $1", leased.id)
    await found_soon(scene, leased.id)


async def test_a_retried_job_is_found(scene: Scene) -> None:
    clock = PostgresClock(scene.store)
    await clock.freeze(await clock.now())
    await scene.store.enqueue([job(kind="first", priority=4)])
    (leased,) = await scene.store.claim(wants("first"))
    await moved_floor(scene)
    retry = Transition(Event.RETRY, error=BROKEN)
    assert await scene.elsewhere.finish([Finish(leased.lease, retry)]) == [Fenced.DONE]
    await found_soon(scene, leased.id, "work", "first")


async def test_a_job_that_a_person_revived_is_found(scene: Scene) -> None:
    await scene.store.enqueue([job(priority=4)])
    (leased,) = await scene.store.claim(wants())
    failed = Transition(Event.FAIL, error=BROKEN)
    assert await scene.store.finish([Finish(leased.lease, failed)]) == [Fenced.DONE]
    await moved_floor(scene)
    assert await scene.elsewhere.retry([leased.id]) == ["ready"]
    await found_soon(scene, leased.id)


async def test_a_job_of_a_more_urgent_priority_is_found(scene: Scene) -> None:
    await moved_floor(scene)
    urgent = job(priority=0)
    await scene.elsewhere.enqueue([urgent])
    await found_soon(scene, urgent.id)


async def test_a_job_of_another_kind_is_found_when_its_turn_comes(scene: Scene) -> None:
    other = job(kind="other")
    await scene.elsewhere.enqueue([other])
    await moved_floor(scene)
    await found_soon(scene, other.id, "work", "other")


async def test_the_last_job_is_found_when_nothing_else_is_left(scene: Scene) -> None:
    transaction = scene.plain.transaction()
    await transaction.start()
    late = await scene.plain.fetchval("SELECT id FROM holdfast.enqueue('work', '{}')")
    await scene.store.enqueue([job() for _ in range(5)])
    taken, deadline = 0, time.monotonic() + 10.0
    while taken < 5 and time.monotonic() < deadline:
        taken += len(await scene.store.claim(wants(limit=2)))
    await from_floors(scene)
    await transaction.commit()
    await found_soon(scene, late)
