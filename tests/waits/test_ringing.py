"""Every transaction that makes a job final rings for that job's waiters when it commits, and for no others."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast.domain.job import LeasedJob
from holdfast.domain.lifecycle import SUSPECT, Move, Transition
from holdfast.store.contract import Finish
from holdfast.store.opening import migrate
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.wake.final import channel
from tests.databases import Database, OneConnectionStore, connected, opened_store
from tests.store_contract.steps import BROKEN, ENDINGS, LEASE, START, job, wants
from tests.waits.ear import Ear

MINUTE = timedelta(minutes=1)
one_server = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@dataclass(frozen=True)
class Scene:
    """One database, a store in it, and a holder that hears every ring for the jobs it waits for."""

    url: str
    store: PostgresStore
    connection: "asyncpg.Connection[asyncpg.Record]"
    ear: Ear
    holder: UUID

    async def waits_for(
        self, *ids: UUID, lasting: timedelta = MINUTE, holder: UUID | None = None, schema: str = "holdfast"
    ) -> None:
        start = statement("wait_start", schema)
        await self.connection.execute(start, holder or self.holder, ids, [lasting] * len(ids))

    async def running(self) -> LeasedJob:
        await self.store.enqueue([new := job()])
        (leased,) = await self.store.claim(wants())
        assert leased.id == new.id
        return leased

    async def finish(self, leased: LeasedJob, transition: Transition) -> None:
        await self.store.finish([Finish(leased.lease, transition)])

    async def lose(self, id: UUID, times: int) -> None:
        for loss in range(times):
            if loss:
                (again,) = await self.store.claim(wants(suspects=loss >= SUSPECT))
                if loss >= SUSPECT:
                    await self.store.run_alone(again.lease, 1)
            await PostgresClock(self.store).advance(LEASE)
            assert [rescued.id for rescued in await self.store.rescue(10)] == [id]


async def _listening(connection: "asyncpg.Connection[asyncpg.Record]", url: str, holder: UUID) -> Ear:
    ear = Ear(connection, url, channel(holder))
    await ear.listen()
    return ear


@asynccontextmanager
async def _scene_in(database: Database) -> AsyncIterator[Scene]:
    holder = uuid4()
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await PostgresClock(store).freeze(START)
        async with connected(database.url) as listening:
            ear = await _listening(listening, database.url, holder)
            yield Scene(database.url, store, connection, ear, holder)


@pytest.fixture
async def scene(emptied: Database) -> AsyncIterator[Scene]:
    async with _scene_in(emptied) as scene:
        yield scene


@pytest.fixture
async def own_scene(database: Database) -> AsyncIterator[Scene]:
    """In a separate database for this test."""
    async with _scene_in(database) as scene:
        yield scene


async def _finish(scene: Scene, ending: Transition) -> UUID:
    leased = await scene.running()
    await scene.waits_for(leased.id)
    await scene.finish(leased, ending)
    return leased.id


async def _finish_in_transaction(scene: Scene) -> UUID:
    leased = await scene.running()
    await scene.waits_for(leased.id)
    async with scene.connection.transaction():
        finish = "SELECT holdfast.finish_in_transaction($1, $2, NULL)"
        await scene.connection.execute(finish, leased.id, leased.lease.claim)
        assert await scene.ear.heard() == []
    return leased.id


async def _cancel(scene: Scene) -> UUID:
    await scene.store.enqueue([new := job()])
    await scene.waits_for(new.id)
    await scene.store.cancel([new.id])
    return new.id


async def _cancel_a_dead_letter(scene: Scene) -> UUID:
    leased = await scene.running()
    await scene.finish(leased, ENDINGS["fail"])
    await scene.waits_for(leased.id)
    await scene.store.cancel([leased.id])
    return leased.id


async def _retry_after_a_cancel_request(scene: Scene) -> UUID:
    leased = await scene.running()
    await scene.store.cancel([leased.id])
    await scene.waits_for(leased.id)
    await scene.finish(leased, ENDINGS["retry"])
    return leased.id


async def _lose_after_a_cancel_request(scene: Scene) -> UUID:
    leased = await scene.running()
    await scene.store.cancel([leased.id])
    await scene.waits_for(leased.id)
    await scene.lose(leased.id, 1)
    return leased.id


async def _lose_too_often(scene: Scene) -> UUID:
    leased = await scene.running()
    await scene.waits_for(leased.id)
    await scene.lose(leased.id, SUSPECT + 1)
    return leased.id


ENDS: dict[str, Callable[[Scene], Awaitable[UUID]]] = {
    "succeed without a result": lambda scene: _finish(scene, Transition(Move.SUCCEED)),
    "succeed with a result": lambda scene: _finish(scene, ENDINGS["succeed"]),
    "fail": lambda scene: _finish(scene, ENDINGS["fail"]),
    "exhaust": lambda scene: _finish(scene, ENDINGS["exhaust"]),
    "cancel by the handler": lambda scene: _finish(scene, ENDINGS["cancel"]),
    "finish in a transaction": _finish_in_transaction,
    "cancel": _cancel,
    "cancel a dead letter": _cancel_a_dead_letter,
    "retry after a cancel request": _retry_after_a_cancel_request,
    "lose after a cancel request": _lose_after_a_cancel_request,
    "lose too often": _lose_too_often,
}


@pytest.mark.parametrize("end", ENDS)
async def test_every_way_to_a_final_state_rings_once_for_its_waiter(scene: Scene, end: str) -> None:
    id = await ENDS[end](scene)
    assert await scene.ear.heard() == [str(id)]
    await scene.finish(await scene.running(), Transition(Move.SUCCEED))
    assert await scene.ear.heard() == []


async def test_a_job_that_is_not_final_does_not_ring(scene: Scene) -> None:
    for ending in ("retry", "snooze"):
        await _finish(scene, ENDINGS[ending])
    await _finish(scene, Transition(Move.RELEASE))
    leased = (await scene.store.claim(wants()))[0]
    await scene.store.cancel([leased.id])
    assert await scene.ear.heard() == []


async def test_a_finish_that_rolls_back_does_not_ring(scene: Scene) -> None:
    leased = await scene.running()
    await scene.waits_for(leased.id)
    transaction = scene.connection.transaction()
    await transaction.start()
    await OneConnectionStore(scene.connection).finish([Finish(leased.lease, ENDINGS["succeed"])])
    await transaction.rollback()
    assert await scene.ear.heard() == []
    await scene.finish(leased, ENDINGS["succeed"])
    assert await scene.ear.heard() == [str(leased.id)]


async def test_an_expired_or_ended_wait_gets_no_ring(scene: Scene) -> None:
    one, two = await scene.running(), await scene.running()
    await scene.waits_for(one.id, lasting=timedelta(0))
    await scene.waits_for(two.id)
    await scene.connection.execute(statement("wait_end", "holdfast"), scene.holder, [two.id])
    for leased in (one, two):
        await scene.finish(leased, ENDINGS["succeed"])
    assert await scene.ear.heard() == []


async def test_registering_a_wait_again_can_only_extend_it(scene: Scene) -> None:
    leased = await scene.running()
    for lasting in (timedelta(0), MINUTE, timedelta(0)):
        await scene.waits_for(leased.id, lasting=lasting)
    await scene.finish(leased, ENDINGS["succeed"])
    assert await scene.ear.heard() == [str(leased.id)]


async def test_five_hundred_finishes_at_once_ring_three_times_and_each_holder_hears_only_its_own(scene: Scene) -> None:
    await scene.store.enqueue([job(id=uuid4()) for _ in range(250)] + [job() for _ in range(251)])
    leased = await scene.store.claim(wants(limit=501))
    ids, other = [each.id for each in leased], uuid4()
    await scene.waits_for(*ids[:500])
    await scene.waits_for(ids[500], ids[0], holder=other)
    async with connected(scene.url) as listening:
        other_ear = await _listening(listening, scene.url, other)
        await scene.store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in leased])
        rings = await scene.ear.heard()
        assert sorted(id for ring in rings for id in ring.split(",")) == sorted(map(str, ids[:500]))
        assert len(rings) == 3
        (ring,) = await other_ear.heard()
        assert sorted(ring.split(",")) == sorted(map(str, (ids[0], ids[500])))


@one_server
@pytest.mark.parametrize("schema", ["other", "Jobs of-today"])
async def test_each_schema_has_its_own_waiters(own_scene: Scene, schema: str) -> None:
    await migrate(own_scene.url, schema)
    async with opened_store(own_scene.url, schema=schema) as other:
        await own_scene.store.enqueue([mine := job()])
        await other.enqueue([job(id=mine.id)])
        await own_scene.waits_for(mine.id)
        await other.cancel([mine.id])
        assert await own_scene.ear.heard() == []
        await own_scene.store.cancel([mine.id])
        assert await own_scene.ear.heard() == [str(mine.id)]
        await other.retry([mine.id])
        await own_scene.waits_for(mine.id, schema=schema)
        await other.cancel([mine.id])
        assert await own_scene.ear.heard() == [str(mine.id)]


@one_server
async def test_a_job_in_a_partition_that_was_added_later_rings_too(own_scene: Scene) -> None:
    await own_scene.connection.execute("SELECT holdfast.add_partitions(date '2029-05-05', 1)")
    id = await own_scene.connection.fetchval("SELECT holdfast.first_id(timestamptz '2029-05-05 12:00:00+00')")
    await own_scene.store.enqueue([job(id=id)])
    await own_scene.waits_for(id)
    await own_scene.store.cancel([id])
    assert await own_scene.connection.fetchval("SELECT count(*) FROM holdfast.finished_20290505") == 1
    assert await own_scene.ear.heard() == [str(id)]


_BLOCKS = """
SELECT sum(pg_stat_get_xact_blocks_fetched(relation.oid))::integer
FROM pg_class AS relation
LEFT JOIN pg_index AS index ON index.indexrelid = relation.oid
WHERE coalesce(index.indrelid, relation.oid) = 'holdfast.waiter'::regclass
"""
_WAITS_THAT_ENDED = """
DO $$ BEGIN
    FOR number IN 1..8 LOOP
        INSERT INTO holdfast.waiter
        SELECT gen_random_uuid(), gen_random_uuid(), clock_timestamp() - interval '1 second'
        FROM generate_series(1, 1000);
        DELETE FROM holdfast.waiter;
    END LOOP;
END $$
"""


@pytest.mark.parametrize("waits", [False, True])
async def test_a_finish_does_not_scan_ended_waits_that_an_old_snapshot_retains(scene: Scene, waits: bool) -> None:
    worker = OneConnectionStore(scene.connection)
    await scene.connection.execute("VACUUM ANALYZE holdfast.waiter")

    async def finished() -> int:
        leased = await scene.running()
        if waits:
            await scene.waits_for(leased.id)
        async with scene.connection.transaction():
            before = await scene.connection.fetchval(_BLOCKS) or 0
            await worker.finish([Finish(leased.lease, Transition(Move.FAIL, error=BROKEN))])
            blocks: int = await scene.connection.fetchval(_BLOCKS) - before
            return blocks

    for _ in range(7):
        await finished()
    async with connected(scene.url) as pinning, pinning.transaction(isolation="repeatable_read"):
        await pinning.execute("SELECT FROM holdfast.ready")
        async with connected(scene.url) as ending:
            await ending.execute("DELETE FROM holdfast.waiter")
            await ending.execute(_WAITS_THAT_ENDED)
            await ending.execute("VACUUM holdfast.waiter")
            pages = await ending.fetchval("SELECT pg_relation_size('holdfast.waiter') / 8192")
        assert pages >= 50, "the snapshot did not keep the dead rows"
        assert await finished() <= 30
