"""The transactional finish: a handler's writes and its outcome commit together or not at all."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import asyncpg
import psycopg
import pytest

from holdfast.domain.claim import new_claim
from holdfast.domain.errors import StaleLease
from holdfast.domain.job import JobState, Lease
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, impatient, opened_store
from tests.store_contract.steps import ENDINGS, LEASE, OTHER_HOLDER, job, wants

Isolation = Literal["read_committed", "repeatable_read", "serializable"]
LEVELS: list[Isolation] = ["read_committed", "repeatable_read", "serializable"]


@dataclass(frozen=True, slots=True)
class Scene:
    """A running job, the connection on which its handler writes, and a store that never waits for a lock."""

    store: PostgresStore
    clock: PostgresClock
    connection: "asyncpg.Connection[asyncpg.Record]"
    lease: Lease
    url: str

    async def write(self) -> None:
        await self.connection.execute("INSERT INTO effect DEFAULT VALUES")

    async def finish(self, lease: Lease | None = None, result: Json | None = None) -> None:
        await self.store.finish_in.statement(lease or self.lease, result).execute_on(self.connection)

    async def effects(self) -> int:
        found: int = await self.connection.fetchval("SELECT count(*) FROM effect")
        return found

    async def state(self) -> JobState:
        found = await PostgresReader(self.store).get(self.lease.id)
        assert found is not None
        return found.state

    async def lose(self) -> None:
        await self.clock.advance(LEASE)
        assert [rescued.id for rescued in await self.store.rescue(10)] == [self.lease.id]


@pytest.fixture
async def scene(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("holdfast.store.postgres.changing._LOCKED_SECONDS", 0)
    async with opened_store(impatient(database.url, 150)) as store, connected(database.url) as connection:
        await connection.execute("CREATE TABLE effect (number integer GENERATED ALWAYS AS IDENTITY)")
        clock = PostgresClock(store)
        await clock.freeze(await clock.now())
        await store.enqueue([job()])
        (leased,) = await store.claim(wants())
        yield Scene(store, clock, connection, leased.lease, database.url)
        await connection.execute("DROP TABLE effect")


@pytest.mark.parametrize("level", LEVELS)
async def test_the_effect_and_the_outcome_commit_together(scene: Scene, level: Isolation) -> None:
    async with scene.connection.transaction(isolation=level):
        await scene.write()
        await scene.finish(result=Json('{"pages": 3}'))
        assert await scene.state() is JobState.RUNNING
    found = await PostgresReader(scene.store).get(scene.lease.id)
    assert found is not None
    assert (found.state, found.fence, found.attempt) == (JobState.SUCCEEDED, scene.lease.fence, 1)
    assert found.as_dict()["result"] == {"pages": 3}
    assert found.finished_at == await scene.clock.now()
    assert await scene.effects() == 1
    assert await scene.store.finish([Finish(scene.lease, ENDINGS["succeed"])]) == [Fenced.ALREADY]


@pytest.mark.parametrize("level", LEVELS)
async def test_a_rollback_undoes_both(scene: Scene, level: Isolation) -> None:
    transaction = scene.connection.transaction(isolation=level)
    await transaction.start()
    await scene.write()
    await scene.finish()
    await transaction.rollback()
    assert (await scene.state(), await scene.effects()) == (JobState.RUNNING, 0)
    assert await scene.store.finish([Finish(scene.lease, ENDINGS["succeed"])]) == [Fenced.DONE]


async def _try_to_commit(scene: Scene) -> None:
    """Continue after the error, like a careless handler: PostgreSQL turns the commit into a rollback."""
    assert await scene.connection.execute("COMMIT") == "ROLLBACK"
    assert await scene.effects() == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("then", ["", "claimed", "finished"])
async def test_a_lease_lost_during_the_handlers_writes_aborts_the_transaction(
    scene: Scene, level: Isolation, then: str
) -> None:
    transaction = scene.connection.transaction(isolation=level)
    await transaction.start()
    await scene.write()
    await scene.lose()
    if then:
        (again,) = await scene.store.claim(wants(holder=OTHER_HOLDER))
        if then == "finished":
            assert await scene.store.finish([Finish(again.lease, ENDINGS["succeed"])]) == [Fenced.DONE]
    before = await PostgresReader(scene.store).get(scene.lease.id)
    # Under the stricter levels the snapshot still shows the lease, so the error comes from PostgreSQL itself.
    expected = StaleLease if level == "read_committed" else asyncpg.SerializationError
    with pytest.raises(expected):
        await scene.finish()
    await _try_to_commit(scene)
    assert await PostgresReader(scene.store).get(scene.lease.id) == before


@pytest.mark.parametrize("level", LEVELS)
async def test_a_lease_lost_before_the_transaction_is_stale(scene: Scene, level: Isolation) -> None:
    await scene.lose()
    transaction = scene.connection.transaction(isolation=level)
    await transaction.start()
    await scene.write()
    with pytest.raises(StaleLease, match=f"the lease of job {scene.lease.id} by claim {scene.lease.claim} was lost"):
        await scene.finish()
    await _try_to_commit(scene)


async def test_another_claim_with_the_same_fence_is_stale(scene: Scene) -> None:
    for claim in (new_claim(OTHER_HOLDER), new_claim(scene.lease.claim)):
        with pytest.raises(StaleLease):
            await scene.finish(scene.lease._replace(claim=claim))
    assert await scene.state() is JobState.RUNNING


async def test_a_finish_cannot_be_sent_twice_in_one_transaction(scene: Scene) -> None:
    async with scene.connection.transaction():
        await scene.finish()
        with pytest.raises(StaleLease):
            async with scene.connection.transaction():
                await scene.finish()
    assert await scene.state() is JobState.SUCCEEDED


async def test_other_verbs_skip_the_lease_and_never_wait(scene: Scene) -> None:
    store, lease = scene.store, scene.lease
    await store.enqueue([job()])
    (other,) = await store.claim(wants())
    async with scene.connection.transaction():
        await scene.finish()
        renewed = await store.renew([Renewal(each, LEASE) for each in (lease, other.lease)])
        assert [each.fenced for each in renewed] == [Fenced.LOCKED, Fenced.DONE]
        assert await store.cancel([lease.id]) == ["locked"]
        assert await store.retry([lease.id]) == ["live"]
        assert await store.release([lease]) == [Fenced.LOCKED]
        for ending in ENDINGS.values():
            assert await store.finish([Finish(lease, ending)]) == [Fenced.LOCKED]
        await scene.clock.advance(LEASE)
        assert [rescued.id for rescued in await store.rescue(10)] == [other.id]
        assert await scene.state() is JobState.RUNNING
    assert await scene.state() is JobState.SUCCEEDED
    assert await store.rescue(10) == []


async def test_a_locked_lease_does_not_keep_other_jobs_from_finishing(scene: Scene) -> None:
    store = scene.store
    await store.enqueue([job() for _ in range(3)])
    others = [each.lease for each in await store.claim(wants())]
    async with scene.connection.transaction():
        await scene.finish()
        for name in ("succeed", "fail"):
            finishes = [Finish(scene.lease, ENDINGS[name]), Finish(others.pop(), ENDINGS[name])]
            assert await store.finish(finishes) == [Fenced.LOCKED, Fenced.DONE]
        plain = [Finish(lease, Transition(Move.SUCCEED)) for lease in (*others, scene.lease)]
        assert await store.finish(plain) == [Fenced.DONE, Fenced.LOCKED]


async def test_an_expired_lease_can_be_finished_until_it_is_rescued(scene: Scene) -> None:
    await scene.clock.advance(2 * LEASE)
    async with scene.connection.transaction():
        await scene.finish()
    assert await scene.state() is JobState.SUCCEEDED


@pytest.mark.parametrize("level", LEVELS)
async def test_a_renewal_after_the_snapshot_can_cost_a_retry_but_not_the_lease(scene: Scene, level: Isolation) -> None:
    transaction = scene.connection.transaction(isolation=level)
    await transaction.start()
    await scene.write()
    await scene.store.renew([Renewal(scene.lease, 2 * LEASE)])
    if level == "read_committed":
        await scene.finish()
        await transaction.commit()
    else:
        with pytest.raises(asyncpg.SerializationError):
            await scene.finish()
        await transaction.rollback()
        async with scene.connection.transaction(isolation=level):
            await scene.finish()
            await scene.write()
    assert (await scene.state(), await scene.effects()) == (JobState.SUCCEEDED, 1)


async def test_jobs_enqueued_in_the_transaction_commit_or_roll_back_with_it(scene: Scene) -> None:
    for commits in (False, True):
        transaction = scene.connection.transaction()
        await transaction.start()
        await scene.connection.execute("SELECT holdfast.enqueue('next', '{}')")
        await scene.finish()
        await (transaction.commit() if commits else transaction.rollback())
        assert len(await scene.store.claim(wants("next"))) == int(commits)


async def test_the_transactional_finish_works_from_psycopg_too(scene: Scene) -> None:
    stale = scene.lease._replace(claim=new_claim(OTHER_HOLDER))
    with psycopg.connect(scene.url) as blocking:
        with pytest.raises(StaleLease):
            scene.store.finish_in.statement(stale, None).execute_on(blocking)
        blocking.rollback()
    async with await psycopg.AsyncConnection.connect(scene.url) as waiting:
        awaitable = scene.store.finish_in.statement(stale, None).execute_on(waiting)
        assert awaitable is not None
        with pytest.raises(StaleLease):
            await awaitable
        await waiting.rollback()
    assert await scene.state() is JobState.RUNNING
    with psycopg.connect(scene.url) as blocking:
        assert scene.store.finish_in.statement(scene.lease, Json("[1]")).execute_on(blocking) is None
    assert await scene.state() is JobState.SUCCEEDED
