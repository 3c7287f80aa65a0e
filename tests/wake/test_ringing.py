"""Who makes a job ready rings for those who sleep on its queue, once, when it commits; and for nobody else."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from holdfast.domain.job import NewJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Finish
from holdfast.store.opening import migrate
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, OneConnectionStore, connected, opened_store
from tests.store_contract.steps import BROKEN, START, job, wants
from tests.wake.ear import Ear, listening

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Scene:
    """One database, a store in it, a connection for plain SQL, and an ear that hears every ring."""

    url: str
    store: PostgresStore
    connection: "asyncpg.Connection[asyncpg.Record]"
    ear: Ear

    async def asleep(self, *queues: str, until: timedelta = MINUTE, schema: str = "holdfast") -> UUID:
        holder = uuid4()
        await self.connection.execute(statement("asleep", schema), queues, holder, until)
        return holder


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    async with (
        opened_store(database.url) as store,
        connected(database.url) as connection,
        listening(database.url) as ear,
    ):
        yield Scene(database.url, store, connection, ear)


async def test_nobody_is_rung_for_while_nobody_sleeps(scene: Scene) -> None:
    await scene.store.enqueue([job(), job(queue="mail")])
    await scene.store.enqueue([job(key="a")])
    await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
    assert await scene.ear.heard() == []


async def test_a_thousand_jobs_ring_once_for_each_queue(scene: Scene) -> None:
    for _ in range(3):
        await scene.asleep("mail", "default")
    await scene.store.enqueue([job(queue=queue) for queue in ("default", "mail", "default") * 333])
    assert sorted(await scene.ear.heard()) == ["default", "mail"]


async def test_a_transaction_rings_once_however_often_it_enqueues(scene: Scene) -> None:
    await scene.asleep("default")
    await scene.asleep("default")
    async with scene.connection.transaction():
        for _ in range(3):
            await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
        await OneConnectionStore(scene.connection).enqueue([job()])
        assert await scene.ear.heard() == []
    assert await scene.ear.heard() == ["default"]


async def test_a_job_that_was_rolled_back_rings_for_nobody(scene: Scene) -> None:
    await scene.asleep("default")
    transaction = scene.connection.transaction()
    await transaction.start()
    await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
    await transaction.rollback()
    assert await scene.ear.heard() == []


async def test_a_sleep_that_ran_out_or_is_on_another_queue_is_not_disturbed(scene: Scene) -> None:
    await scene.asleep("default", until=timedelta(0))
    await scene.asleep("mail")
    await scene.store.enqueue([job()])
    await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
    assert await scene.ear.heard() == []


async def test_whoever_is_awake_again_is_not_rung_for(scene: Scene) -> None:
    holder = await scene.asleep("default", "mail")
    await scene.connection.execute(statement("awake", "holdfast"), ["default", "mail"], holder)
    await scene.store.enqueue([job(), job(queue="mail")])
    assert await scene.ear.heard() == []


@pytest.mark.parametrize("schema", ["other", "Jobs of-today"])
async def test_each_schema_has_sleepers_and_a_channel_of_its_own(scene: Scene, schema: str) -> None:
    await migrate(scene.url, schema)
    async with opened_store(scene.url, schema=schema) as other, listening(scene.url, schema) as other_ear:
        await scene.asleep("default")
        await other.enqueue([job()])
        assert (await scene.ear.heard(), await other_ear.heard()) == ([], [])
        await scene.asleep("default", schema=schema)
        await other.enqueue([job()])
        await scene.connection.execute(f"SELECT \"{schema}\".enqueue('work', '{{}}')")
        assert (await scene.ear.heard(), await other_ear.heard()) == ([], ["default", "default"])


async def test_only_a_key_that_makes_a_job_rings(scene: Scene) -> None:
    await scene.asleep("default")
    await scene.store.enqueue([job(key="a"), job(key="b")])
    assert await scene.ear.heard() == ["default"]
    await scene.store.enqueue([job(key="a"), job(key="b")])
    assert await scene.ear.heard() == []


@pytest.mark.parametrize("key", [None, "a"], ids=["statement", "function"])
async def test_a_job_that_is_due_within_a_minute_rings_and_a_later_one_does_not(scene: Scene, key: str | None) -> None:
    await scene.asleep("default")
    await PostgresClock(scene.store).freeze(START)
    second = timedelta(seconds=1)
    cases: list[tuple[NewJob, list[str]]] = [
        (job(key=key), ["default"]),
        (job(key=key and "b", delay=MINUTE), ["default"]),
        (job(key=key and "c", delay=MINUTE + second), []),
        (job(key=key and "d", run_at=START - MINUTE), ["default"]),
        (job(key=key and "e", run_at=START + MINUTE), ["default"]),
        (job(key=key and "f", run_at=START + MINUTE + second), []),
    ]
    for new, expected in cases:
        await scene.store.enqueue([new])
        assert await scene.ear.heard() == expected, new


async def test_a_job_that_others_may_run_at_once_rings(scene: Scene) -> None:
    await scene.store.enqueue([job() for _ in range(6)])
    leases = [leased.lease for leased in await scene.store.claim(wants(limit=6))]
    await scene.asleep("default")
    cases = [
        (Transition(Move.SUCCEED), []),
        (Transition(Move.FAIL, error=BROKEN), []),
        (Transition(Move.RETRY, delay=timedelta(seconds=5), error=BROKEN), []),
        (Transition(Move.RETRY, delay=timedelta(0), error=BROKEN), ["default"]),
        (Transition(Move.SNOOZE, delay=timedelta(0)), ["default"]),
        (Transition(Move.RELEASE), ["default"]),
    ]
    for lease, (transition, expected) in zip(leases, cases, strict=True):
        await scene.store.finish([Finish(lease, transition)])
        assert await scene.ear.heard() == expected, transition
    await scene.store.retry([leases[0].id, leases[1].id])
    assert await scene.ear.heard() == ["default"]


_BLOCKS = """
SELECT sum(pg_stat_get_xact_blocks_fetched(relation.oid))::integer
FROM pg_class AS relation
LEFT JOIN pg_index AS index ON index.indexrelid = relation.oid
WHERE coalesce(index.indrelid, relation.oid) = 'holdfast.sleeper'::regclass
"""
_RENEW_OFTEN = """
DO $$ BEGIN
    FOR number IN 1..8000 LOOP
        UPDATE holdfast.sleeper SET until = clock_timestamp() - (8000 - number) * interval '1 second';
    END LOOP;
END $$
"""


@pytest.mark.parametrize("key", [None, "key"], ids=["statement", "function"])
async def test_renewals_that_a_pinned_snapshot_keeps_do_not_make_enqueuing_slow(scene: Scene, key: str | None) -> None:
    """The plan is made while the table is empty and has been vacuumed; then a day's renewals stay as dead rows."""
    producer = OneConnectionStore(scene.connection)
    await scene.connection.execute("VACUUM ANALYZE holdfast.sleeper")
    for number in range(7):
        await producer.enqueue([job(key=key and f"{key} {number}")])
    async with (
        connected(scene.url) as sleeping,
        connected(scene.url) as pinning,
        pinning.transaction(isolation="repeatable_read"),
    ):
        await pinning.execute("SELECT FROM holdfast.ready")
        await scene.asleep("default", until=timedelta(0))
        await sleeping.execute(_RENEW_OFTEN)
        await sleeping.execute("VACUUM holdfast.sleeper")
        pages = await sleeping.fetchval("SELECT pg_relation_size('holdfast.sleeper') / 8192")
        assert pages >= 50, "the snapshot did not keep the dead rows"
        await producer.enqueue([job(key=key and f"{key} to plan")])
        async with scene.connection.transaction():
            before = await scene.connection.fetchval(_BLOCKS)
            await producer.enqueue([job(key=key)])
            blocks = await scene.connection.fetchval(_BLOCKS) - before
    assert 0 < blocks <= 5
    assert await scene.ear.heard() == []
