"""The fixtures detect what a test leaves behind: a connection, a task, a thread, or a changed database."""

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
    """Shorten the waits, so that leaks are reported at once."""
    monkeypatch.setattr(databases, "_PATIENCE", 0.05)


@pytest.mark.parametrize("make", ["fresh_database", "emptied_database"])
async def test_an_open_connection_is_detected(server: DatabaseMaker, soon: None, make: str) -> None:
    block = getattr(server, make)()
    connection = await asyncpg.connect(block.__enter__().url)
    await connection.execute("SELECT 'mine'")
    with pytest.raises(AssertionError, match=r"the test left connections open: .*SELECT 'mine'"):
        block.__exit__(None, None, None)
    connection.terminate()


async def test_an_emptied_database_keeps_nothing_of_the_previous_test(server: DatabaseMaker) -> None:
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
async def test_a_database_with_changes_beyond_its_rows_is_not_reused(server: DatabaseMaker, change: str) -> None:
    with server.emptied_database() as first:
        async with connected(first.url) as connection:
            await connection.execute(change)
    with server.emptied_database() as second:
        assert second != first


async def test_a_running_task_is_detected() -> None:
    forever = asyncio.Event()
    with pytest.raises(AssertionError, match="the test left tasks running"):
        async with no_task_left():
            task = asyncio.create_task(forever.wait())
    task.cancel()


def test_a_running_thread_is_detected(soon: None) -> None:
    end = threading.Event()
    with pytest.raises(AssertionError, match=r"the test left threads running: .'mine'"), no_thread_left():
        threading.Thread(target=end.wait, name="mine").start()
    end.set()
