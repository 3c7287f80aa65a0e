"""Counts come from the ledger and always equal a scan of the tables, even while several processes compact it."""

import asyncio
import json
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Deleting, Finish
from holdfast.store.postgres import maintenance
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.past import is_sound
from tests.store_contract.steps import BROKEN, ENDINGS, job, wants

SUCCEED = Transition(Move.SUCCEED)


async def compacted(store: PostgresStore) -> int:
    merged = 0
    async for batch in PostgresMaintenance(store).compact_counts():
        merged += batch.counts.get("entries_merged", 0)
    return merged


async def test_a_count_reads_no_history(database: Database) -> None:
    async with connected(database.url) as connection:
        plan = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {statement('count', 'holdfast')}")

    def relations(node: dict[str, object]) -> set[object]:
        inner = node.get("Plans", [])
        assert isinstance(inner, list)
        return {node.get("Relation Name")}.union(*map(relations, inner))

    assert relations(json.loads(plan)[0]["Plan"]) == {None, "ready", "lease", "ledger"}


async def test_every_transition_into_or_out_of_a_final_state_is_counted(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        reader = PostgresReader(store)
        await store.enqueue([job(kind=f"kind-{number % 3}", queue=f"queue-{number % 2}") for number in range(60)])
        kinds, queues = ("kind-0", "kind-1", "kind-2"), ("queue-0", "queue-1")
        leased = await store.claim(wants(*kinds, queues=queues, limit=50))
        endings = [SUCCEED, *ENDINGS.values()]
        await store.finish(
            [Finish(each.lease, endings[number % len(endings)]) for number, each in enumerate(leased[:40])]
        )
        await is_sound(connection)
        held = leased[40]
        async with connection.transaction():
            await connection.execute("SELECT holdfast.finish_in_transaction($1, $2, '1')", held.id, held.lease.claim)
        await is_sound(connection)
        # Let leases expire: one of a job that a person asked to cancel, and others that have no attempts left.
        await store.cancel([leased[41].id])
        await connection.execute("UPDATE holdfast.lease SET suspicion = 2, crash_limit = 1 WHERE NOT cancel_requested")
        await PostgresClock(store).advance(timedelta(minutes=1))
        states = [each.state for each in await store.rescue(100)]
        assert (states.count(JobState.DEAD), states.count(JobState.CANCELED)) == (8, 1)
        await is_sound(connection)
        everybody = [row["id"] for row in await store.fetch("list", None, None, None, None, 100)]
        await store.cancel(everybody[::4])
        await is_sound(connection)
        assert await compacted(store) > 0
        await is_sound(connection)
        await store.retry(everybody[::3])
        await is_sound(connection)
        assert sum((await reader.count()).values()) == 60
        deleted = (await store.delete(everybody[::5])).count(Deleting.DELETED)
        assert 0 < deleted < 12
        await is_sound(connection)
        assert sum((await reader.count()).values()) == 60 - deleted
        await compacted(store)
        groups = await connection.fetch("SELECT day, queue, kind, state FROM holdfast.ledger")
        assert len(groups) == len(set(groups)) > 0
        await is_sound(connection)
        assert await compacted(store) == 0


async def test_a_job_that_ends_and_is_retried_leaves_nothing_in_the_ledger(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        (new,) = await store.enqueue([job()])
        for _ in range(3):
            await store.cancel([new.id])
            await store.retry([new.id])
        assert await connection.fetchval("SELECT count(*) FROM holdfast.ledger") == 6
        await compacted(store)
        assert await connection.fetchval("SELECT count(*) FROM holdfast.ledger") == 0


async def test_concurrent_compaction_neither_loses_nor_doubles_a_count(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_LEDGER_BATCH", 7)
    jobs, seen = 400, []
    async with opened_store(database.url, pool_size=8) as store, connected(database.url) as connection:
        await store.enqueue([job() for _ in range(jobs)])
        done = asyncio.Event()

        async def work() -> None:
            while leased := await store.claim(wants(limit=3)):
                await store.finish([Finish(each.lease, SUCCEED) for each in leased])

        async def add_up() -> None:
            while not done.is_set():
                await compacted(store)

        async def count() -> None:
            while not done.is_set():
                counts = await PostgresReader(store).count()
                # One statement uses one snapshot, so a job that moves is neither missed nor seen twice.
                assert sum(counts.values()) == jobs
                seen.append(counts[JobState.SUCCEEDED])

        async def all_work() -> None:
            await asyncio.gather(work(), work(), work())
            done.set()

        await asyncio.gather(all_work(), add_up(), add_up(), count())
        assert seen == sorted(seen)
        assert (await PostgresReader(store).count())[JobState.SUCCEEDED] == jobs
        await is_sound(connection)


async def test_ids_without_a_time_are_counted_and_pruned_too(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        ids = [UUID(int=1), UUID("0" * 12 + "f" * 20), UUID(int=(1 << 128) - 1), UUID("8" * 32)]
        await store.enqueue([job(id=id) for id in ids])
        leased = await store.claim(wants())
        await store.finish([Finish(each.lease, SUCCEED) for each in leased[:3]])
        await store.finish([Finish(leased[3].lease, Transition(Move.FAIL, error=BROKEN))])
        await is_sound(connection)
        await PostgresClock(store).advance(timedelta(days=30))
        async for _ in PostgresMaintenance(store).prune_jobs(timedelta(days=1)):
            pass
        counts = await PostgresReader(store).count()
        assert (counts[JobState.SUCCEEDED], counts[JobState.FAILED]) == (0, 1)
        await is_sound(connection)


@pytest.mark.parametrize(
    ("moment", "day"),
    [
        ("2030-01-01 00:00:00+00", "2030-01-01"),
        ("2030-01-01 23:59:59.999+00", "2030-01-01"),
        ("2030-01-02 00:00:00+00", "2030-01-02"),
        ("2000-01-01 00:00:00+00", "2000-01-01"),
        ("1999-12-31 23:59:59.999+00", "1970-01-01"),
        ("2099-12-31 23:59:59.999+00", "2099-12-31"),
        ("2100-01-01 00:00:00+00", "1970-01-01"),
    ],
)
async def test_the_day_of_an_id_matches_its_partition(database: Database, moment: str, day: str) -> None:
    async with connected(database.url) as connection:
        found = await connection.fetchval(f"SELECT holdfast.day_of(holdfast.first_id('{moment}'))::text")
        assert found == day
