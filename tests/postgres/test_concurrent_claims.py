"""Many claims at once: each job goes to exactly one of them, and no claim waits for another."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.domain.job import JobState
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresStore
from tests.databases import Database, connected, impatient, opened_store
from tests.store_contract.steps import job, wants

ONLY_18 = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@ONLY_18
async def test_twenty_claimers_take_every_job_exactly_once(database: Database) -> None:
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(opened_store(impatient(database.url, 2000), pool_size=1 + number % 2))
            for number in range(20)
        ]
        jobs = [job(kind=f"kind-{number % 3}", priority=number % 2) for number in range(10_000)]
        for start in range(0, len(jobs), 2500):
            await stores[0].enqueue(jobs[start : start + 2500])
        taken: list[UUID] = []
        deadline = time.monotonic() + 60

        async def claim_all(store: PostgresStore, limit: int) -> None:
            holder = uuid4()
            while len(taken) < len(jobs) and time.monotonic() < deadline:
                leased = await store.claim(wants("kind-0", "kind-1", "kind-2", limit=limit, holder=holder))
                taken.extend(each.id for each in leased)

        await asyncio.gather(*(claim_all(store, 20 * (1 + number % 5)) for number, store in enumerate(stores)))
        assert Counter(taken) == Counter(each.id for each in jobs)
        fences = await stores[0].fetch("list", "running", None, None, None, 20_000)
        assert len(fences) == len(jobs)
        counts = await PostgresReader(stores[0]).count()
        assert (counts[JobState.READY], counts[JobState.RUNNING]) == (0, len(jobs))


async def test_a_claim_never_waits_for_a_transaction_that_has_locked_ready_jobs(database: Database) -> None:
    async with opened_store(impatient(database.url, 50)) as store, connected(database.url) as other:
        jobs = [job(priority=number // 10) for number in range(30)]
        await store.enqueue(jobs)
        locked = [each.id for each in jobs[5:15]]
        async with other.transaction():
            await other.execute("SELECT FROM holdfast.ready WHERE id = ANY ($1) FOR UPDATE", locked)
            leased = await store.claim(wants())
            assert [each.id for each in leased] == [each.id for each in jobs[:5] + jobs[15:]]
            assert await store.claim(wants()) == []
        assert [each.id for each in await store.claim(wants())] == locked


async def test_a_claim_never_waits_for_an_uncommitted_claim(database: Database) -> None:
    async with opened_store(impatient(database.url, 50)) as store, connected(database.url) as other:
        jobs = [job() for _ in range(10)]
        await store.enqueue(jobs)
        transaction = other.transaction()
        await transaction.start()
        rows = await other.fetch(
            "SELECT id FROM holdfast.claim($1, NULL, 4, 1000, false, false, NULL, NULL, '{default}', '{5}', '{work}', "
            "'{-infinity}', $2, '{4}', '{4}', '{30 s}')",
            uuid4(),
            [UUID(int=0)],
        )
        assert [row["id"] for row in rows] == [each.id for each in jobs[:4]]
        assert [each.id for each in await store.claim(wants())] == [each.id for each in jobs[4:]]
        await transaction.rollback()
        assert [each.id for each in await store.claim(wants())] == [each.id for each in jobs[:4]]


async def test_a_cancel_does_not_wait_for_an_uncommitted_claim(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.changing._LOCKED_SECONDS", 0)
    async with opened_store(impatient(database.url, 50)) as store, connected(database.url) as other:
        first, second = job(), job()
        await store.enqueue([first, second])
        async with other.transaction():
            await other.execute("SELECT FROM holdfast.ready WHERE id = $1 FOR UPDATE", first.id)
            assert await store.cancel([first.id, second.id]) == ["locked", "canceled"]
        assert await store.cancel([first.id, second.id]) == ["canceled", "final"]


@ONLY_18
async def test_concurrent_enqueues_and_claims_lose_nothing(database: Database) -> None:
    async with AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(opened_store(database.url, pool_size=1)) for _ in range(3)]
        claimers = [await stack.enter_async_context(opened_store(database.url, pool_size=1)) for _ in range(3)]
        expected: list[UUID] = []
        taken: list[UUID] = []
        deadline = time.monotonic() + 60

        async def produce(store: PostgresStore, number: int) -> None:
            for batch in range(40):
                jobs = [job(priority=(number + batch) % 3) for _ in range(1 + batch % 7)]
                expected.extend(each.id for each in jobs)
                await store.enqueue(jobs)

        producing = asyncio.gather(*(produce(store, number) for number, store in enumerate(producers)))

        async def claim_all(store: PostgresStore) -> None:
            while (not producing.done() or len(taken) < len(expected)) and time.monotonic() < deadline:
                taken.extend(each.id for each in await store.claim(wants(limit=5)))

        await asyncio.gather(producing, *(claim_all(store) for store in claimers))
        assert Counter(taken) == Counter(expected)


@pytest.mark.long
async def test_a_claim_that_waited_five_seconds_for_a_locked_table_leases_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the worker has abandoned the claim, so no process would know about the leases."""
    async with (
        opened_store(database.url) as store,
        connected(database.url) as other,
        connected(database.url) as late,
        connected(database.url) as watching,
    ):
        asked: list[tuple[str, tuple[object, ...]]] = []
        fetch = store.fetch

        async def noted(verb: str, *arguments: object) -> Any:  # noqa: ANN401
            asked.append((verb, arguments))
            return await fetch(verb, *arguments)

        monkeypatch.setattr(store, "fetch", noted)
        await store.enqueue([job()])
        assert len(await store.claim(wants())) == 1
        await store.enqueue([job()])
        verb, arguments = asked[-2]
        assert verb == "claim"
        async with other.transaction():
            await other.execute("LOCK TABLE holdfast.ready")
            claim = asyncio.create_task(late.fetch(statement(verb, "holdfast", len(arguments)), *arguments))
            async with asyncio.timeout(20):
                while not await watching.fetchval(_HAS_WAITED):  # noqa: ASYNC110 - the server sends no notification
                    await asyncio.sleep(0.05)
        assert await claim == []
        assert len(await late.fetch(statement(verb, "holdfast", len(arguments)), *arguments)) == 1


_HAS_WAITED = """
    SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                   AND query LIKE '%claim%' AND clock_timestamp() > query_start + interval '5 seconds')
"""
