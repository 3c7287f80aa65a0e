"""A handler finishes its row in its own transaction: its writes and the outcome commit together or not at all."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import psycopg
import pytest

from holdfast.domain.errors import InvalidInput, StaleLease
from holdfast.domain.job import JobState, Lease
from holdfast.domain.json_text import Json
from holdfast.store.contract import Canceling, Fenced, Renewal
from holdfast.store.postgres.store import PostgresClock
from holdfast.store.rows.store import RowStore
from tests.databases import Database, connected, impatient, opened_store
from tests.rows.tables import OUTBOX, OUTBOX_TABLE, migrate
from tests.store_contract.steps import ENDINGS, LEASE, job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


Isolation = Literal["read_committed", "repeatable_read", "serializable"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A running row in a store that never waits for a lock."""

    url: str
    store: RowStore
    clock: PostgresClock
    lease: Lease

    async def finish(self, connection: object) -> None:
        finish_in = self.store.finish_in()
        assert finish_in is not None
        awaitable = finish_in.statement(self.lease, Json('{"pages": 3}')).execute_on(connection)
        if awaitable is not None:
            await awaitable

    async def state(self) -> JobState:
        found = await self.store.jobs.get(self.lease.id)
        assert found is not None
        return found.state


@pytest.fixture
async def scene(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("holdfast.store.rows.store._LOCKED_SECONDS", 0)
    async with connected(database.url) as connection:
        await connection.execute(OUTBOX_TABLE)
        await connection.execute("CREATE TABLE effect (number integer GENERATED ALWAYS AS IDENTITY)")
        await migrate(connection, OUTBOX)
    async with opened_store(impatient(database.url, 150)) as store:
        rows = RowStore(store, OUTBOX)
        await rows.enqueue([job()])
        (leased,) = await rows.claim(wants())
        yield Scene(database.url, rows, PostgresClock(store), leased.lease)


async def test_the_effect_and_the_outcome_commit_together(scene: Scene) -> None:
    async with connected(scene.url) as connection:
        async with connection.transaction():
            await connection.execute("INSERT INTO effect DEFAULT VALUES")
            await scene.finish(connection)
            assert await scene.state() is JobState.RUNNING
        assert await connection.fetchval("SELECT count(*) FROM effect") == 1
    found = await scene.store.jobs.get(scene.lease.id)
    assert found is not None
    assert (found.state, found.fence) == (JobState.SUCCEEDED, scene.lease.fence)
    assert found.as_dict()["result"] == {"pages": 3}
    (again,) = await scene.store.renew([Renewal(scene.lease, LEASE)])
    assert again.fenced is Fenced.ALREADY


async def test_a_rollback_leaves_the_row_with_its_worker(scene: Scene) -> None:
    async with connected(scene.url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await scene.finish(connection)
        await transaction.rollback()
    assert await scene.state() is JobState.RUNNING
    (renewed,) = await scene.store.renew([Renewal(scene.lease, LEASE)])
    assert renewed.fenced is Fenced.DONE


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_a_transaction_with_a_lost_lock_cannot_commit(scene: Scene, isolation: Isolation) -> None:
    await scene.clock.advance(LEASE)
    assert len(await scene.store.rescue(10)) == 1
    async with connected(scene.url) as connection:
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.execute("INSERT INTO effect DEFAULT VALUES")
        with pytest.raises(StaleLease, match="outbox"):
            await scene.finish(connection)
        await connection.execute("COMMIT")
        assert await connection.fetchval("SELECT count(*) FROM effect") == 0
    assert await scene.state() is JobState.READY


async def test_a_blocking_connection_can_finish_a_row_too(scene: Scene) -> None:
    with psycopg.connect(scene.url) as connection:
        connection.execute("INSERT INTO effect DEFAULT VALUES")
        await scene.finish(connection)
    assert await scene.state() is JobState.SUCCEEDED


async def test_a_row_being_finished_is_neither_lost_nor_waited_for(scene: Scene) -> None:
    async with connected(scene.url) as connection, connection.transaction():
        await scene.finish(connection)
        (renewed,) = await scene.store.renew([Renewal(scene.lease, LEASE)])
        assert renewed.fenced is Fenced.LOCKED
        assert await scene.store.release([scene.lease]) == [Fenced.LOCKED]
        await scene.clock.advance(2 * LEASE)
        assert await scene.store.rescue(10) == []
        assert await scene.store.cancel([scene.lease.id]) == [Canceling.LOCKED]
    assert await scene.state() is JobState.SUCCEEDED


async def test_finish_in_only_accepts_success_for_a_row(scene: Scene) -> None:
    finish_in = scene.store.finish_in()
    assert finish_in is not None
    with pytest.raises(InvalidInput, match=r"^finish_in: a row of your own table can only succeed here; raise"):
        finish_in.end_statement(scene.lease, ENDINGS["fail"])
    assert await scene.state() is JobState.RUNNING
