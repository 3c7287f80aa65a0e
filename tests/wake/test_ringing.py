"""A transaction that makes a job ready rings on commit, for one sleeper of each team on the queue."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest

from holdfast.domain.job import NewJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.domain.limits import RING_AHEAD
from holdfast.store.contract import Finish
from holdfast.store.opening import migrate
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, OneConnectionStore, connected, opened_store
from tests.store_contract.steps import BROKEN, START, job, wants
from tests.wake.ear import TEAM, Ear, Ring, listening


@dataclass(frozen=True)
class Scene:
    """One database, a store in it, a connection for plain SQL, and an ear that hears every ring."""

    url: str
    store: PostgresStore
    connection: "asyncpg.Connection[asyncpg.Record]"
    ear: Ear


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    async with (
        opened_store(database.url) as store,
        connected(database.url) as connection,
        listening(database.url) as ear,
    ):
        yield Scene(database.url, store, connection, ear)


async def test_no_ring_is_sent_without_sleepers(scene: Scene) -> None:
    await scene.store.enqueue([job(), job(queue="mail")])
    await scene.store.enqueue([job(key="a")])
    await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
    assert await scene.ear.heard() == []


async def test_a_thousand_jobs_wake_one_sleeper_per_queue(scene: Scene) -> None:
    for _ in range(3):
        await scene.ear.asleep("mail", "default")
    await scene.store.enqueue([job(queue=queue) for queue in ("default", "mail", "default") * 333])
    assert sorted(await scene.ear.heard()) == ["default", "mail"]


async def test_a_transaction_rings_once_no_matter_how_often_it_enqueues(scene: Scene) -> None:
    await scene.ear.asleep("default")
    async with scene.connection.transaction():
        for _ in range(3):
            await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
        await OneConnectionStore(scene.connection).enqueue([job()])
        assert await scene.ear.rings() == []
    assert await scene.ear.heard() == ["default"]


async def test_the_only_sleeper_is_woken_and_no_later_look_is_requested(scene: Scene) -> None:
    alone = await scene.ear.asleep("default")
    await scene.store.enqueue([job()])
    assert await scene.ear.rings() == [Ring(alone, "now", "default")]


async def test_jobs_are_spread_over_the_sleepers_and_one_of_them_looks_later(scene: Scene) -> None:
    sleepers = sorted([await scene.ear.asleep("default") for _ in range(10)])
    for _ in range(60):
        await scene.store.enqueue([job()])
    rings = await scene.ear.rings()
    woken = Counter(ring.holder for ring in rings if ring.how == "now")
    later = Counter(ring.holder for ring in rings if ring.how == "later")
    assert (woken.total(), later.total()) == (60, 60)
    assert len(woken) >= 7, "all of ten, by lot"
    assert set(later) <= set(sleepers[:2])
    assert later[sleepers[0]] == 60 - woken[sleepers[0]], "the first, unless it is the one that was woken"


async def test_one_sleeper_of_each_team_is_woken(scene: Scene) -> None:
    """All members of a team have the same handlers and shard; workers of other teams may be unable to take the job."""
    teams = {await scene.ear.asleep("default", team=team): team for team in [TEAM, uuid4(), uuid4()] for _ in range(3)}
    await scene.store.enqueue([job()])
    rings = await scene.ear.rings()
    for how in ("now", "later"):
        assert sorted(teams[ring.holder] for ring in rings if ring.how == how) == sorted(set(teams.values()))
    assert len({ring.holder for ring in rings}) == 6


async def test_a_sleeper_that_did_not_renew_lately_is_woken_only_if_it_is_the_only_one(scene: Scene) -> None:
    """Its worker died or hangs: a row is valid for fifteen seconds and renewed every five."""
    lively = [await scene.ear.asleep("default", until=timedelta(seconds=15)) for _ in range(2)]
    dead = [await scene.ear.asleep("default", until=timedelta(seconds=8)) for _ in range(8)]
    for _ in range(20):
        await scene.store.enqueue([job()])
    assert {ring.holder for ring in await scene.ear.rings()} == set(lively)
    for holder in lively:
        await scene.connection.execute(statement("awake", "holdfast"), ["default"], holder)
    await scene.store.enqueue([job()])
    assert {ring.holder for ring in await scene.ear.rings()} < set(dead)


async def test_a_ring_is_passed_on_to_two_others_of_the_team(scene: Scene) -> None:
    passing = await scene.ear.asleep("default", "mail")
    team = {await scene.ear.asleep("default") for _ in range(3)}
    await scene.ear.asleep("default", team=uuid4())
    await scene.connection.execute(statement("pass_on", "holdfast"), ["default", "mail"], passing, TEAM)
    rings = await scene.ear.rings()
    assert {(ring.how, ring.queue) for ring in rings} == {("passed", "default")}
    assert len(rings) == 2
    assert {ring.holder for ring in rings} < team


async def test_a_job_that_was_rolled_back_does_not_ring(scene: Scene) -> None:
    await scene.ear.asleep("default")
    transaction = scene.connection.transaction()
    await transaction.start()
    await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
    await transaction.rollback()
    assert await scene.ear.heard() == []


async def test_an_expired_sleep_or_one_on_another_queue_is_not_disturbed(scene: Scene) -> None:
    await scene.ear.asleep("default", until=timedelta(0))
    await scene.ear.asleep("mail")
    await scene.store.enqueue([job()])
    await scene.connection.execute("SELECT holdfast.enqueue('work', '{}')")
    assert await scene.ear.heard() == []


async def test_a_worker_that_is_awake_again_is_not_woken(scene: Scene) -> None:
    holder = await scene.ear.asleep("default", "mail")
    await scene.connection.execute(statement("awake", "holdfast"), ["default", "mail"], holder)
    await scene.store.enqueue([job(), job(queue="mail")])
    assert await scene.ear.heard() == []


@pytest.mark.parametrize("schema", ["other", "Jobs of-today"])
async def test_each_schema_has_separate_sleepers(scene: Scene, schema: str) -> None:
    await migrate(scene.url, schema)
    async with opened_store(scene.url, schema=schema) as other, listening(scene.url, schema) as other_ear:
        await scene.ear.asleep("default")
        await other.enqueue([job()])
        assert (await scene.ear.heard(), await other_ear.heard()) == ([], [])
        await other_ear.asleep("default")
        await other.enqueue([job()])
        await scene.connection.execute(f"SELECT \"{schema}\".enqueue('work', '{{}}')")
        assert (await scene.ear.heard(), await other_ear.heard()) == ([], ["default", "default"])


async def test_only_a_key_that_makes_a_job_rings(scene: Scene) -> None:
    await scene.ear.asleep("default")
    await scene.store.enqueue([job(key="a"), job(key="b")])
    assert await scene.ear.heard() == ["default"]
    await scene.store.enqueue([job(key="a"), job(key="b")])
    assert await scene.ear.heard() == []


@pytest.mark.parametrize("key", [None, "a"], ids=["statement", "function"])
async def test_a_job_due_within_a_minute_rings_and_a_later_one_does_not(scene: Scene, key: str | None) -> None:
    await scene.ear.asleep("default")
    await PostgresClock(scene.store).freeze(START)
    second = timedelta(seconds=1)
    cases: list[tuple[NewJob, list[str]]] = [
        (job(key=key), ["default"]),
        (job(key=key and "b", delay=RING_AHEAD), ["default"]),
        (job(key=key and "c", delay=RING_AHEAD + second), []),
        (job(key=key and "d", run_at=START - RING_AHEAD), ["default"]),
        (job(key=key and "e", run_at=START + RING_AHEAD), ["default"]),
        (job(key=key and "f", run_at=START + RING_AHEAD + second), []),
    ]
    for new, expected in cases:
        await scene.store.enqueue([new])
        assert await scene.ear.heard() == expected, new


async def test_a_job_that_other_workers_may_run_soon_rings(scene: Scene) -> None:
    """When the job is due, the worker that had it may be full or gone."""
    await scene.store.enqueue([job() for _ in range(8)])
    leases = [leased.lease for leased in await scene.store.claim(wants(limit=8))]
    await scene.ear.asleep("default")
    cases = [
        (Transition(Move.SUCCEED), []),
        (Transition(Move.FAIL, error=BROKEN), []),
        (Transition(Move.RETRY, delay=timedelta(minutes=2), error=BROKEN), []),
        (Transition(Move.SNOOZE, delay=timedelta(minutes=2)), []),
        (Transition(Move.RETRY, delay=timedelta(seconds=5), error=BROKEN), ["default"]),
        (Transition(Move.RETRY, delay=timedelta(0), error=BROKEN), ["default"]),
        (Transition(Move.SNOOZE, delay=timedelta(0)), ["default"]),
        (Transition(Move.RELEASE), ["default"]),
    ]
    for lease, (transition, expected) in zip(leases, cases, strict=True):
        await scene.store.finish([Finish(lease, transition)])
        assert await scene.ear.heard() == expected, transition
    await scene.store.retry([leases[0].id, leases[1].id])
    assert await scene.ear.heard() == ["default"]


async def test_rescued_jobs_ring(scene: Scene) -> None:
    clock = PostgresClock(scene.store)
    await clock.freeze(START)
    await scene.store.enqueue([job() for _ in range(3)])
    assert len(await scene.store.claim(wants(limit=3))) == 3
    await scene.ear.asleep("default")
    await clock.advance(timedelta(hours=1))
    assert len(await scene.store.rescue(10)) == 3
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
async def test_dead_rows_kept_by_a_pinned_snapshot_do_not_make_enqueueing_slow(scene: Scene, key: str | None) -> None:
    """The query is planned while the table is empty and vacuumed; then a day of renewals is left as dead rows."""
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
        await scene.ear.asleep("default", until=timedelta(0))
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
