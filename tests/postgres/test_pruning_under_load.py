"""Days are dropped while their jobs are enqueued, claimed, finished, retried and canceled: nothing is lost.

The retention is shorter than the age of the test's IDs, so every day can be dropped at any time. Jobs that ended before
the test began may be removed unless they are retried first; all others must stay.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from asyncpg import TransactionRollbackError

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import JobState, LeasedJob
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Canceling, Fenced, Finish, Retrying
from holdfast.store.postgres import maintenance
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.past import RETENTION, add_days, days_with_partitions, id_of, is_sound
from tests.store_contract.steps import BROKEN, job, wants
from tests.worker.harness import until

DAYS = 24
OLD_JOBS = 600
LONG = timedelta(days=1000)
ENDINGS = [
    *[Transition(Move.SUCCEED)] * 6,
    Transition(Move.SUCCEED, result=Json("1")),
    Transition(Move.RETRY, error=BROKEN),
    Transition(Move.FAIL, error=BROKEN),
    Transition(Move.CANCEL, error=BROKEN),
    Transition(Move.RELEASE),
]


class Crowd:
    """All concurrent users of the store. `must_live` holds the jobs that must not be removed."""

    def __init__(self, store: PostgresStore, url: str) -> None:
        self.store = store
        self.url = url
        self.random = random.Random(1)
        self.old: list[UUID] = []
        self.must_live: set[UUID] = set()
        self.done = asyncio.Event()
        self.did: Counter[str] = Counter()

    async def enqueue(self) -> None:
        while not self.done.is_set():
            keyed = self.random.random() < 0.3
            jobs = [job(id=id_of(self._day()), key=str(uuid4()) if keyed else None) for _ in range(5)]
            self.must_live.update(each.id for each in await self.store.enqueue(jobs))
            self.did["enqueued"] += len(jobs)
            await asyncio.sleep(0)

    def _day(self) -> int:
        return self.random.randint(1, DAYS)

    async def work(self) -> None:
        holder = uuid4()
        while not self.done.is_set():
            for leased in await self.store.claim(wants(limit=20, holder=holder, lease=LONG)):
                await self._end(leased)
            self.did["claims"] += 1

    async def _end(self, leased: LeasedJob) -> None:
        fenced = Fenced.LOCKED
        transition = self.random.choice(ENDINGS)
        while fenced is Fenced.LOCKED:
            (fenced,) = await self.store.finish([Finish(leased.lease, transition)])
        assert fenced is Fenced.DONE

    async def work_in_transactions(self) -> None:
        """Handlers that finish in their own transaction and sometimes roll back."""
        async with connected(self.url) as connection:
            while not self.done.is_set():
                for leased in await self.store.claim(wants(limit=1, lease=LONG)):
                    transaction = connection.transaction()
                    await transaction.start()
                    await connection.execute("SELECT FROM holdfast.job LIMIT 1")
                    finish_in = "SELECT holdfast.finish_in_transaction($1, $2, NULL)"
                    await connection.execute(finish_in, leased.id, leased.lease.claim)
                    await asyncio.sleep(0.01)
                    if self.random.random() < 0.7:
                        await transaction.commit()
                        self.did["transactions"] += 1
                    else:
                        await transaction.rollback()
                        await self._end(leased)
                await asyncio.sleep(0.02)

    async def interfere(self) -> None:
        """A person who retries old jobs and cancels others."""
        while not self.done.is_set():
            ids = self.random.sample(self.old, 2) + self.random.sample(sorted(self.must_live), 2)
            for id, answer in zip(ids, await self.store.retry(ids), strict=True):
                assert answer is not Retrying.UNKNOWN or id not in self.must_live
                if answer is Retrying.READY:
                    self.must_live.add(id)
                    self.did["retried"] += 1
            (canceled,) = ids[-1:]
            assert await self.store.cancel([canceled]) != [Canceling.UNKNOWN]
            await asyncio.sleep(0.01)

    async def prune(self) -> None:
        async with opened_store(self.url, pool_size=1) as store:
            keeping = PostgresMaintenance(store)
            while not self.done.is_set():
                try:
                    await self._prune_once(keeping)
                except StoreUnavailable as error:
                    if isinstance(error.__cause__, TransactionRollbackError):
                        raise
                    # While a day is dropped, the server ends a session that is silent for a second, which can happen
                    # here on a busy machine. A runner tries again, and this must not lose anything either.
                    self.did["unavailable"] += 1
                await asyncio.sleep(0.01)

    async def _prune_once(self, keeping: PostgresMaintenance) -> None:
        async for batch in keeping.prune_jobs(RETENTION):
            self.did.update(batch.counts)
        async for batch in keeping.compact_counts():
            self.did.update(batch.counts)

    async def count(self) -> None:
        reader = PostgresReader(self.store)
        while not self.done.is_set():
            assert min((await reader.count()).values()) >= 0
            await asyncio.sleep(0.05)


async def _earlier_life(crowd: Crowd) -> None:
    """Add jobs of all days that ended long before the retention."""
    await PostgresClock(crowd.store).advance(-2 * RETENTION)
    await crowd.store.enqueue([job(id=id_of(1 + number % DAYS), key=f"{number}") for number in range(OLD_JOBS)])
    leased = await crowd.store.claim(wants(limit=OLD_JOBS, lease=LONG))
    await crowd.store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in leased])
    crowd.old = [each.id for each in leased]
    await PostgresClock(crowd.store).advance(2 * RETENTION)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_nothing_is_lost_while_days_are_dropped(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_DROP_PAUSE", 0.01)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(database.url, pool_size=8))
        connection = await stack.enter_async_context(connected(database.url))
        await add_days(connection, DAYS)
        crowd = Crowd(store, database.url)
        await _earlier_life(crowd)
        crowd.must_live.update(each.id for each in await store.enqueue([job(id=id_of(1)) for _ in range(50)]))

        min_kept = (await PostgresClock(store).now() - RETENTION).date()

        async def all_are_dropped() -> bool:
            return crowd.done.is_set() or min(await days_with_partitions(connection)) >= min_kept

        async def until_dropped() -> None:
            await until(all_are_dropped, "all days are dropped", seconds=120)
            crowd.done.set()

        members = [crowd.enqueue(), crowd.work(), crowd.work(), crowd.work(), crowd.work_in_transactions()]
        members += [crowd.interfere(), crowd.count(), crowd.prune(), crowd.prune(), until_dropped()]
        tasks = [asyncio.ensure_future(member) for member in members]
        try:
            await asyncio.gather(*tasks)
        finally:
            crowd.done.set()
            await asyncio.gather(*tasks, return_exceptions=True)

        await is_sound(connection)
        known = {row["id"] for row in await store.fetch("show", list(crowd.must_live))}
        assert known == crowd.must_live
        # Every leased job reached its worker and was ended: a claim that lost one would have left its lease behind.
        assert (await PostgresReader(store).count())[JobState.RUNNING] == 0
        kept_keys = {row["job_id"] for row in await connection.fetch("SELECT job_id FROM holdfast.key")}
        assert kept_keys <= {row["id"] for row in await store.fetch("show", list(kept_keys))} | set(crowd.old)
        for what in ("enqueued", "claims", "transactions", "retried", "jobs_pruned", "jobs_moved"):
            assert crowd.did[what] > 0, crowd.did
        assert crowd.did["partitions_dropped"] >= 2 * (DAYS - 2)
