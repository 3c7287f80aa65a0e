"""Background work never harms jobs: adding partitions, maintenance in many processes at once, and rescues."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from holdfast.domain.budget import Budget
from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import Move, Transition
from holdfast.maintenance.chores import Retention
from holdfast.maintenance.runner import Maintenance
from holdfast.store.contract import Fenced, Finish, Rescued
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.past import RETENTION, add_days, days_with_partitions, id_of, is_sound, pruned
from tests.store_contract.steps import BROKEN, LEASE, job, wants


async def partitions(url: str) -> int:
    async with connected(url) as connection:
        count: int = await connection.fetchval("SELECT count(*) FROM pg_inherits")
        return count


async def test_several_workers_at_a_new_day_add_its_partitions_once(database: Database) -> None:
    before = await partitions(database.url)

    async def add() -> None:
        async with connected(database.url) as connection:
            await connection.execute("SELECT holdfast.add_partitions(current_date + 30, 5)")

    await asyncio.gather(*(add() for _ in range(6)))
    await add()
    # Two tables with one index each.
    assert await partitions(database.url) == before + 5 * 2 * 2


async def added(store: PostgresStore) -> int:
    (batch,) = [batch async for batch in PostgresMaintenance(store).add_partitions(RETENTION)]
    return batch.counts["partitions_added"]


async def test_partitions_are_made_for_the_coming_days_of_the_stores_clock(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        assert await added(store) in (0, 2)
        await PostgresClock(store).advance(timedelta(days=3))
        assert await added(store) == 6
        assert await added(store) == 0
        days = await days_with_partitions(connection)
        assert days == [days[0] + timedelta(number) for number in range(len(days))]


async def test_a_day_with_jobs_in_the_default_partition_gets_no_partition_until_they_are_pruned(
    database: Database,
) -> None:
    """This is the state after weeks without maintenance."""
    async with opened_store(database.url) as store, connected(database.url) as connection:
        before = await days_with_partitions(connection)
        for day in before:
            await connection.execute(f"DROP TABLE holdfast.job_{day:%Y%m%d}, holdfast.finished_{day:%Y%m%d}")
        await store.enqueue([job(), job()])
        (leased, _) = await store.claim(wants(lease=timedelta(days=100)))
        await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))])
        assert await added(store) == 2 * 7
        assert before[0] not in await days_with_partitions(connection)
        assert await connection.fetchval("SELECT count(*) FROM ONLY holdfast.job_other") == 2
        await is_sound(connection)
        await PostgresClock(store).advance(timedelta(days=30))
        assert (await pruned(store))["jobs_pruned"] == 1
        assert await connection.fetchval("SELECT count(*) FROM ONLY holdfast.job_other") == 1
        await is_sound(connection)


async def test_a_step_that_another_process_is_doing_is_skipped(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:
        maintenance = PostgresMaintenance(store)
        steps = {
            "prune_jobs": lambda: maintenance.prune_jobs(RETENTION),
            "prune_dead_letters": lambda: maintenance.prune_dead_letters(RETENTION),
            "compact_counts": maintenance.compact_counts,
        }
        for step, batches in steps.items():
            async with other.transaction():
                assert await other.fetchval("SELECT holdfast.try_chore($1)", step)
                assert {batch.skipped async for batch in batches()} == {"another process is doing it"}
            assert {batch.skipped async for batch in batches()} == {None}
        async with other.transaction():
            await other.execute("SELECT holdfast.add_partitions(current_date, 1)")
            assert {batch.skipped async for batch in maintenance.add_partitions(RETENTION)} == {
                "another process is doing it"
            }


@pytest.mark.parametrize("replicas", [6])
async def test_many_replicas_do_all_steps_concurrently(database: Database, replicas: int) -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(database.url))
        connection = await stack.enter_async_context(connected(database.url))
        await add_days(connection, 6)
        jobs = [job(id=id_of(1 + number % 6), key=f"{number}") for number in range(300)]
        await store.enqueue(jobs)
        leased = await store.claim(wants(limit=250, lease=timedelta(days=100)))
        succeed, fail = Transition(Move.SUCCEED), Transition(Move.FAIL, error=BROKEN)
        await store.finish([Finish(each.lease, succeed) for each in leased[:200]])
        await store.finish([Finish(each.lease, fail) for each in leased[200:240]])
        await PostgresClock(store).advance(timedelta(days=30))
        opened = [await stack.enter_async_context(opened_store(database.url, pool_size=1)) for _ in range(replicas)]
        retention = Retention(RETENTION, timedelta(days=10), timedelta(days=30))
        reports = await asyncio.gather(
            *(Maintenance(PostgresMaintenance(each), retention).run(Budget(), to_end=True) for each in opened)
        )
        last = await Maintenance(PostgresMaintenance(store), retention).run(Budget(), to_end=True)
        assert [report.error for report in (*reports, last)] == [None] * (replicas + 1)
        did = sum((Counter(report.counts) for report in (*reports, last)), Counter())
        assert (did["jobs_pruned"], did["dead_letters_pruned"]) == (200, 40)
        counts = await PostgresReader(store).count()
        assert counts == {**dict.fromkeys(JobState, 0), JobState.READY: 50, JobState.RUNNING: 10}
        assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 60
        await is_sound(connection)


async def test_a_process_that_finds_all_maintenance_done_runs_one_query(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`holdfast tick` does this every second on several machines."""
    retention = Retention(RETENTION, timedelta(days=10), timedelta(days=30))
    async with opened_store(database.url) as one, opened_store(database.url) as other:
        assert (await Maintenance(PostgresMaintenance(one), retention).run(Budget(), to_end=True)).is_fine
        asked: list[str] = []
        fetch = other.fetch

        async def noted(verb: str, *arguments: object) -> object:
            asked.append(verb)
            return await fetch(verb, *arguments)

        monkeypatch.setattr(other, "fetch", noted)
        monkeypatch.setattr(other, "maintenance_transaction", lambda: pytest.fail("a step was done again"))
        report = await Maintenance(PostgresMaintenance(other), retention).run(Budget(), to_end=True)
        assert (asked, report.error, report.skipped, report.counts) == (["chores_done"], None, None, {})


async def test_leases_are_rescued_and_jobs_claimed_without_maintenance(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        for day in await days_with_partitions(connection):
            await connection.execute(f"DROP TABLE holdfast.job_{day:%Y%m%d}, holdfast.finished_{day:%Y%m%d}")
        await store.enqueue([job()])
        (leased,) = await store.claim(wants())
        await PostgresClock(store).advance(LEASE + timedelta(seconds=1))
        assert await store.rescue(10) == [Rescued(leased.id, JobState.READY)]
        (again,) = await store.claim(wants())
        assert await store.finish([Finish(again.lease, Transition(Move.SUCCEED))]) == [Fenced.DONE]
        await is_sound(connection)
