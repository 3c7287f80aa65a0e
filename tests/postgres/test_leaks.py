"""The fixtures find what a test leaves behind: a connection, a task, a thread, or a database that is not as it was."""

import asyncio
import threading
from datetime import timedelta

import asyncpg
import pytest

from holdfast.store.postgres.store import PostgresClock
from tests import databases
from tests.databases import DatabaseMaker, connected, no_task_left, no_thread_left, opened_store
from tests.store_contract.steps import job


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose patience at once instead of after seconds."""
    monkeypatch.setattr(databases, "_PATIENCE", 0.05)


@pytest.mark.parametrize("make", ["fresh_database", "emptied_database"])
async def test_a_connection_that_is_left_open_is_found(server: DatabaseMaker, soon: None, make: str) -> None:
    block = getattr(server, make)()
    connection = await asyncpg.connect(block.__enter__().url)
    await connection.execute("SELECT 'mine'")
    with pytest.raises(AssertionError, match=r"the test left connections open: .*SELECT 'mine'"):
        block.__exit__(None, None, None)
    connection.terminate()


async def test_an_emptied_database_has_nothing_of_the_test_before(server: DatabaseMaker) -> None:
    with server.emptied_database() as first:
        async with opened_store(first.url) as store:
            await PostgresClock(store).advance(timedelta(days=1))
            await store.enqueue([job(key="a")])
    with server.emptied_database() as second:
        assert second == first
        async with connected(second.url) as connection:
            for table in ("job", "ready", "key"):
                assert await connection.fetchval(f"SELECT count(*) FROM holdfast.{table}") == 0
            assert await connection.fetchval("SELECT moved = '0' AND frozen_at IS NULL FROM holdfast.clock")
            assert await connection.fetchval("SELECT pg_relation_size('holdfast.ready')") == 0
            assert await connection.fetchval("SELECT nextval('holdfast.run_id_seq')") == 1


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine ()",
        "CREATE SCHEMA mine",
        "DROP TABLE holdfast.job_other",
        "DROP SCHEMA holdfast CASCADE",
        "ALTER TABLE holdfast.ready ADD mine text",
        "ALTER TABLE holdfast.ready SET (fillfactor = 50)",
        "CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()'",
        "UPDATE holdfast.migration SET name = 'mine'",
        "ANALYZE holdfast.migration",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database()); END $$",
    ],
)
async def test_a_database_that_differs_in_more_than_rows_is_not_used_again(server: DatabaseMaker, change: str) -> None:
    with server.emptied_database() as first:
        async with connected(first.url) as connection:
            await connection.execute(change)
    with server.emptied_database() as second:
        assert second != first


async def test_a_task_that_still_runs_is_found() -> None:
    forever = asyncio.Event()
    with pytest.raises(AssertionError, match="the test left tasks running"):
        async with no_task_left():
            task = asyncio.create_task(forever.wait())
    task.cancel()


def test_a_thread_that_still_runs_is_found(soon: None) -> None:
    end = threading.Event()
    with pytest.raises(AssertionError, match=r"the test left threads running: .'mine'"), no_thread_left():
        threading.Thread(target=end.wait, name="mine").start()
    end.set()
