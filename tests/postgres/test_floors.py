"""The next look finds every job that a floor hides."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from uuid import UUID

import asyncpg
import pytest

from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres import claiming
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import BROKEN, LEASE, START, job, wants

BACKLOG = 60
SECOND = timedelta(seconds=1)
"""Longer than the margin that floors leave."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A store whose claims start from floors, the store of another process, a connection, and a movable clock."""

    store: PostgresStore
    elsewhere: PostgresStore
    plain: "asyncpg.Connection[asyncpg.Record]"
    clock: PostgresClock


@pytest.fixture
async def scene(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    # Let every claim leave a floor instead of one per quarter of a second.
    seconds = itertools.count()
    monkeypatch.setattr(claiming, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(database.url, looks=False))
        elsewhere = await stack.enter_async_context(opened_store(database.url))
        plain = await stack.enter_async_context(connected(database.url))
        clock = PostgresClock(store)
        await clock.freeze(START)
        yield Scene(store, elsewhere, plain, clock)


async def move_floor(scene: Scene) -> None:
    """Claim from the middle of a backlog that is older than the margin."""
    await scene.clock.advance(SECOND)
    await scene.store.enqueue([job() for _ in range(BACKLOG)])
    await scene.clock.advance(SECOND)
    await scene.store.look(["default"], ["work"])
    assert len(await scene.store.claim(wants(limit=20))) == 20


async def is_hidden_until_a_look(scene: Scene, id: UUID, *kinds: str) -> None:
    request = wants(*(kinds or ("work",)), limit=1)
    (other,) = await scene.store.claim(request)
    assert other.id != id, "no floor hid it, so this shows nothing"
    looked = await scene.store.look(["default"], list(kinds or ("work",)))
    assert looked.due_in == timedelta(0)
    assert [each.id for each in await scene.store.claim(request)] == [id]


async def test_a_job_committed_late_is_hidden_until_a_look(scene: Scene) -> None:
    transaction = scene.plain.transaction()
    await transaction.start()
    late = await scene.plain.fetchval("SELECT id FROM holdfast.enqueue('work', '{}')")
    await move_floor(scene)
    await transaction.commit()
    await is_hidden_until_a_look(scene, late)


async def test_a_job_committed_late_is_found_when_all_others_are_done(scene: Scene) -> None:
    transaction = scene.plain.transaction()
    await transaction.start()
    late = await scene.plain.fetchval("SELECT id FROM holdfast.enqueue('work', '{}')")
    await move_floor(scene)
    while await scene.store.claim(wants(limit=20)):
        pass
    await transaction.commit()
    assert await scene.store.claim(wants()) == []
    assert (await scene.store.look(["default"], ["work"])).due_in == timedelta(0)
    assert [each.id for each in await scene.store.claim(wants())] == [late]


async def test_a_transaction_shorter_than_the_margin_hides_nothing(scene: Scene) -> None:
    await scene.store.enqueue([job() for _ in range(BACKLOG)])
    await scene.store.claim(wants(limit=20))
    await scene.clock.advance(SECOND)
    transaction = scene.plain.transaction()
    await transaction.start()
    late = await scene.plain.fetchval("SELECT id FROM holdfast.enqueue('work', '{}')")
    await scene.clock.advance(timedelta(milliseconds=200))
    await scene.store.enqueue([job() for _ in range(5)])
    while await scene.store.claim(wants(limit=20)):
        pass
    await transaction.commit()
    assert [each.id for each in await scene.store.claim(wants())] == [late]


async def test_a_job_released_by_another_process_is_hidden_until_a_look(scene: Scene) -> None:
    await scene.store.enqueue([job()])
    (leased,) = await scene.store.claim(wants())
    await move_floor(scene)
    assert await scene.elsewhere.release([leased.lease]) == [Fenced.DONE]
    await is_hidden_until_a_look(scene, leased.id)


async def test_a_job_released_by_this_process_is_found_at_once(scene: Scene) -> None:
    await scene.store.enqueue([job()])
    (leased,) = await scene.store.claim(wants())
    await move_floor(scene)
    assert await scene.store.release([leased.lease]) == [Fenced.DONE]
    assert [each.id for each in await scene.store.claim(wants(limit=1))] == [leased.id]


async def test_a_job_rescued_by_this_process_is_found_at_once(scene: Scene) -> None:
    await scene.store.enqueue([job(priority=4)])
    (leased,) = await scene.store.claim(wants(lease=LEASE))
    await move_floor(scene)
    await scene.clock.advance(LEASE)
    assert leased.id in [rescued.id for rescued in await scene.store.rescue(100)]
    assert [each.id for each in await scene.store.claim(wants(limit=1))] == [leased.id]


async def test_the_first_suspect_of_a_kind_is_found_by_a_look(scene: Scene) -> None:
    await scene.store.enqueue([job()])
    await move_floor(scene)
    await scene.plain.execute(
        "UPDATE holdfast.ready SET losses = 2, is_suspect = true "
        "WHERE id = (SELECT max(id::text)::uuid FROM holdfast.ready)"
    )
    assert await scene.store.claim(wants(suspects=True)) == []
    assert (await scene.store.look(["default"], ["work"])).suspect_due_in == timedelta(0)
    assert len(await scene.store.claim(wants(suspects=True))) == 1


@pytest.mark.parametrize("event", [Move.RETRY, Move.SNOOZE])
async def test_a_retried_or_snoozed_job_is_placed_after_every_floor(scene: Scene, event: Move) -> None:
    await scene.store.enqueue([job(priority=4), job(priority=4)])
    (leased,) = await scene.store.claim(wants(limit=1))
    await move_floor(scene)
    again = Transition(event, error=BROKEN if event is Move.RETRY else None)
    assert await scene.elsewhere.finish([Finish(leased.lease, again)]) == [Fenced.DONE]
    assert leased.id in [each.id for each in await scene.store.claim(wants())]


async def test_the_first_job_of_a_priority_is_hidden_until_a_look(scene: Scene) -> None:
    await move_floor(scene)
    urgent = job(priority=0)
    await scene.elsewhere.enqueue([urgent])
    await is_hidden_until_a_look(scene, urgent.id)


async def test_the_first_job_of_a_kind_is_hidden_until_a_look(scene: Scene) -> None:
    await move_floor(scene)
    other = job(kind="other", priority=4)
    await scene.elsewhere.enqueue([other])
    await is_hidden_until_a_look(scene, other.id, "work", "other")


async def test_a_claim_that_overlaps_a_look_hides_nothing_that_the_look_found(scene: Scene) -> None:
    transaction = scene.plain.transaction()
    await transaction.start()
    late = await scene.plain.fetchval("SELECT id FROM holdfast.enqueue('work', '{}')")
    await move_floor(scene)
    claim_from = scene.store.claim_from

    async def during_a_look(*arguments: object) -> object:
        taken = await claim_from(*arguments)  # type: ignore[arg-type]
        await transaction.commit()
        await scene.store.look(["default"], ["work"])
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.store, "claim_from", during_a_look)
        assert late not in [each.id for each in await scene.store.claim(wants(limit=5))]
    assert [each.id for each in await scene.store.claim(wants(limit=1))] == [late]
