"""The same app on a real PostgreSQL, where transactions have an effect."""

import asyncpg
import pytest

from holdfast import RunningJob
from holdfast.app import Holdfast
from holdfast.store.contract import JobFilter
from holdfast.testing import StuckDrain, drain, in_memory, on_postgres
from tests.databases import Database, connected, no_task_left
from tests.testing.billing import Invoice, app

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def schemas(url: str) -> set[str]:
    async with connected(url) as connection:
        rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'holdfast%'")
    return {row["nspname"] for row in rows}


async def test_a_test_gets_a_separate_schema_next_to_the_applications_tables(
    database: Database, sent: list[str]
) -> None:
    async with on_postgres(app, database.url) as jobs:
        assert jobs.url == database.url
        await app.enqueue("invoice.send", Invoice(17))
        report = await jobs.drain(move_time=True)
        assert sent == ["invoice 17", "reminder 17"]
        assert len(report.succeeded) == 2
        assert len(await schemas(database.url)) == 2
    assert await schemas(database.url) == {"holdfast"}
    assert (app.settings.db_schema, app.is_open) == ("billing", False)


async def test_a_handler_finishes_its_job_in_its_own_transaction(database: Database) -> None:
    paying = Holdfast()

    @paying.handler("pay")
    async def pay(job: RunningJob[dict[str, int]]) -> None:
        connection = await asyncpg.connect(database.url)
        async with connection.transaction():
            await connection.execute("INSERT INTO payment VALUES ($1)", job.payload["amount"])
            await paying.enqueue("receipt", conn=connection)
            await job.finish_in(connection, result={"paid": True})
        await connection.close()

    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE payment (amount integer)")
    async with on_postgres(paying, database.url) as jobs, no_task_left():
        assert await jobs.run("pay", {"amount": 5}) == {"paid": True}
        await jobs.assert_enqueued("receipt", count=1)
        await paying.enqueue("pay", {"amount": 7})
        assert [job.result for job in (await jobs.drain()).succeeded] == [{"paid": True}]
        async with connected(database.url) as connection:
            assert await connection.fetchval("SELECT sum(amount) FROM payment") == 12


async def test_an_app_can_run_in_memory_after_it_was_on_postgres(database: Database) -> None:
    async with on_postgres(app, database.url):
        await app.enqueue("invoice.send", Invoice(17))
    async with in_memory(app) as jobs:
        assert await app.jobs.list(JobFilter(), 10) == []
        await jobs.assert_nothing_enqueued()


async def test_a_drain_of_jobs_locked_by_a_transaction_ends_and_names_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_FRUITLESS_ROUNDS", 3)
    async with on_postgres(app, database.url) as jobs:
        await app.enqueue("invoice.remind", Invoice(17))
        async with connected(database.url) as connection:
            async with connection.transaction():
                await connection.execute(f"SELECT FROM {app.settings.db_schema}.ready FOR UPDATE")
                with pytest.raises(StuckDrain, match=r'1 job is due and cannot be claimed.*\n  invoice\.remind {"num'):
                    await jobs.drain()
            assert len((await jobs.drain()).succeeded) == 1
