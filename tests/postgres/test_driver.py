"""The settings that a connection gets, and the connection that a statement gets."""

import asyncio
import gc
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial

import asyncpg
import pytest

from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.store.postgres import connecting, driver
from holdfast.store.postgres.driver import read_committed
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import job

_WAKE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
"""
_OF_THIS_DATABASE = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()"


async def _sessions(watching: "asyncpg.Connection[asyncpg.Record]") -> dict[int, str]:
    """Return the last statement of each other connection."""
    rows = await watching.fetch(
        "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    return dict(map(tuple, rows))


async def _until(watching: "asyncpg.Connection[asyncpg.Record]", question: str) -> None:
    async with asyncio.timeout(30):
        while not await watching.fetchval(question):  # noqa: ASYNC110 - the signal comes from the server
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_a_day_has_24_hours_in_every_server_time_zone(database: Database) -> None:
    """In Berlin, the day after this moment has 23."""
    moment = datetime(2030, 3, 30, 12, tzinfo=UTC)
    async with connected(database.url) as connection:
        await connection.execute(f"ALTER DATABASE \"{database.name}\" SET timezone = 'Europe/Berlin'")
    try:
        async with opened_store(database.url) as store, store.connection_of_its_own() as other:
            await PostgresClock(store).freeze(moment)
            (enqueued,) = await store.enqueue([job(delay=timedelta(days=1))])
            found = await PostgresReader(store).get(enqueued.id)
            assert found is not None
            assert found.run_at == moment + timedelta(days=1)
            assert await other.fetchval("SHOW timezone") == "UTC"
    finally:
        async with connected(database.url) as connection:
            await connection.execute(f'ALTER DATABASE "{database.name}" RESET timezone')


async def test_a_connection_is_reused_without_a_query_in_between(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:
        first = await _sessions(other)
        for _ in range(3):
            await PostgresClock(store).now()
            assert await _sessions(other) == {pid: statement("now", "holdfast") for pid in first}


async def test_statements_beyond_the_pool_size_wait_for_a_connection(database: Database) -> None:
    async with opened_store(database.url, pool_size=2) as store:
        clock = PostgresClock(store)
        for _ in range(3):
            assert len(await asyncio.gather(*(clock.now() for _ in range(9)))) == 9


async def test_a_connection_that_the_server_closed_is_replaced(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:
        await PostgresClock(store).now()
        (pid,) = await _sessions(other)
        async with store.acquired() as connection:
            closed = asyncio.Event()
            connection.add_termination_listener(lambda _: closed.set())
        await other.execute("SELECT pg_terminate_backend($1)", pid)
        await closed.wait()
        await PostgresClock(store).now()
        assert pid not in await _sessions(other)


@pytest.mark.parametrize("reason", [asyncio.CancelledError(), ZeroDivisionError()], ids=["canceled", "failed"])
async def test_a_transaction_that_loses_its_connection_raises_the_error_of_its_block(
    database: Database, reason: BaseException
) -> None:
    async with opened_store(database.url) as store, connected(database.url) as other:

        async def lose() -> None:
            async with store.acquired() as connection, read_committed(connection):
                closed = asyncio.Event()
                connection.add_termination_listener(lambda _: closed.set())
                await other.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
                await closed.wait()
                raise reason

        with pytest.raises(type(reason)):
            await lose()
        await PostgresClock(store).now()


@pytest.mark.parametrize("steps", range(1, 5))
async def test_canceling_close_leaves_no_connection_open(database: Database, steps: int) -> None:
    """The fixture `database` checks for open connections."""
    store = PostgresStore(database.url)
    await store.open()
    await asyncio.gather(*(PostgresClock(store).now() for _ in range(4)))
    closing = asyncio.ensure_future(store.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])


async def test_idle_connections_are_closed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_IDLE_SECONDS", 0.05)
    make = asyncpg.create_pool
    monkeypatch.setattr(asyncpg, "create_pool", partial(make, max_inactive_connection_lifetime=0.05))
    async with opened_store(database.url) as store, connected(database.url) as other:
        async with store.acquired(), store.acquired():
            pass
        await _until(other, _OF_THIS_DATABASE)
        await PostgresClock(store).now()


async def test_the_driver_does_not_log_an_outage_itself(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets the error. The driver's own log would add a traceback for each of its attempts."""
    with Proxy.before(database.url) as proxy:
        async with opened_store(proxy.url) as store:
            proxy.refuse()
            for _ in range(5):
                with pytest.raises(StoreUnavailable):
                    await PostgresClock(store).now()
            proxy.flow()
            await PostgresClock(store).now()
    assert not [record for record in caplog.records if record.name.startswith("asyncpg")]


async def test_an_open_transaction_does_not_leak_into_the_next_use_of_the_connection(database: Database) -> None:
    async with opened_store(database.url, pool_size=1) as store:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        async with store.acquired() as connection:
            await connection.execute("BEGIN")
        async with store.acquired() as connection:
            assert not connection.is_in_transaction()


async def test_a_canceled_or_refused_statement_leaves_the_pool_usable(database: Database) -> None:
    async with (
        opened_store(database.url, pool_size=1) as store,
        connected(database.url) as other,
        connected(database.url) as looking,
    ):
        async with store.acquired() as connection:
            sleeping = asyncio.ensure_future(connection.execute("SELECT pg_sleep(60)"))
            await _until(other, f"{_OF_THIS_DATABASE} AND wait_event = 'PgSleep'")
            sleeping.cancel()
            await asyncio.wait([sleeping])
        # The client dropped the connection, but the server notices only after its sleep.
        await other.execute(_WAKE)
        async with other.transaction():
            await other.execute("LOCK TABLE holdfast.clock")
            waiting = asyncio.ensure_future(PostgresClock(store).now())
            # Inside a transaction, pg_stat_activity stays as it was at the first read.
            await _until(looking, f"{_OF_THIS_DATABASE} AND wait_event_type = 'Lock'")
            waiting.cancel()
            await asyncio.wait([waiting])
        with pytest.raises(InvalidInput):
            await store.fetch("clock_freeze", "never")
        await PostgresClock(store).now()


async def test_after_one_connection_died_silently_no_other_old_connection_is_used(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them would need the full statement timeout to show that it is dead too."""
    monkeypatch.setattr(connecting, "COMMAND_SECONDS", 0.3)
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what["message"]))
    before = asyncio.all_tasks()
    with Proxy.before(database.url) as proxy:
        async with opened_store(proxy.url, pool_size=6) as store:
            async with AsyncExitStack() as taken:
                for _ in range(6):
                    await taken.enter_async_context(store.acquired())
            proxy.half_open()
            with pytest.raises(StoreUnavailable, match="no answer in time"):
                await PostgresClock(store).now()
            assert len(await asyncio.gather(*(PostgresClock(store).now() for _ in range(6)))) == 6
            # The driver closes each replaced connection in a background task.
            await asyncio.wait(asyncio.all_tasks() - before, timeout=30)
    gc.collect()
    assert complaints == []
