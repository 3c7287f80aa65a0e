"""What goes on beside the jobs must not harm them: partitions for the coming days, and claims of two asks."""

import asyncio
from datetime import timedelta

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.job import JobState
from holdfast.store.contract import ClaimRequest, Rescued
from holdfast.store.postgres import lanes
from holdfast.store.postgres.lanes import Ask
from holdfast.store.postgres.store import PostgresClock
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import LEASE, job, wants


async def partitions(url: str) -> int:
    async with connected(url) as connection:
        count: int = await connection.fetchval("SELECT count(*) FROM pg_inherits")
        return count


async def test_several_workers_that_meet_at_a_new_day_add_its_partitions_once(database: Database) -> None:
    before = await partitions(database.url)

    async def add() -> None:
        async with connected(database.url) as connection:
            await connection.execute("SELECT holdfast.add_partitions(current_date + 30, 5)")

    await asyncio.gather(*(add() for _ in range(6)))
    await add()
    # Two tables and the index of each.
    assert await partitions(database.url) == before + 5 * 2 * 2


async def test_a_day_whose_jobs_went_to_the_default_partition_stays_there(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await connection.execute("DROP TABLE holdfast.job_" + (await _today(database.url)))
        await store.enqueue([job()])
        await connection.execute("SELECT holdfast.add_partitions(current_date, 2)")
        assert await connection.fetchval("SELECT count(*) FROM ONLY holdfast.job_other") == 1
        assert len(await store.claim(wants())) == 1


async def test_leases_are_rescued_by_a_role_that_may_not_add_partitions(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        new = job()
        await store.enqueue([new])
        (leased,) = await store.claim(wants())
        # As for a role without CREATE on the schema.
        await connection.execute(
            "CREATE OR REPLACE FUNCTION holdfast.add_partitions(first_day date, days integer) RETURNS integer "
            "LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$"
        )
        await PostgresClock(store).advance(LEASE + timedelta(seconds=1))
        assert await store.rescue(10) == [Rescued(leased.id, JobState.READY)]


async def test_what_a_first_ask_has_leased_is_kept_when_the_second_one_fails(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_store(database.url) as store:
        await store.enqueue([job(kind=kind) for _ in range(150) for kind in ("work", "other")])
        # The first full look finds two lanes with jobs, so that the next claim reads a share of each.
        assert len(await store.claim(wants("work", "other", limit=20))) == 20
        asks: list[Ask] = []
        run_ask = store._run_ask

        async def failing(request: ClaimRequest, ask: Ask) -> object:
            asks.append(ask)
            if len(asks) == 2:
                raise StoreUnavailable("the connection is gone")
            return await run_ask(request, ask)

        monkeypatch.setattr(store, "_run_ask", failing)
        monkeypatch.setattr(lanes, "_FETCH_AT_LEAST", 8)
        monkeypatch.setattr(lanes.Lanes, "_share", lambda *_, **__: 8)
        claimed = await store.claim(wants("work", "other", limit=100))
        assert len(asks) == 2
        assert len(claimed) == 16


async def _today(url: str) -> str:
    async with connected(url) as connection:
        day: str = await connection.fetchval("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        return day
