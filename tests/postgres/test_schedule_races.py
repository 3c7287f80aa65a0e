"""Many processes compete for one occurrence, and connections that hold a lock die or go silent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import psycopg
import pytest
import uvloop

from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import JobState
from holdfast.domain.json_text import encode
from holdfast.store.postgres import lock
from holdfast.store.postgres.driver import open_connection
from holdfast.store.postgres.lock import held_lock
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.schedules import NewRun, Schedule, ScheduleStore, lock_key
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, connected, opened_store
from tests.store_contract.schedule_steps import MINUTE, advanced, new_schedule
from tests.store_contract.steps import START
from tests.worker.harness import until

_HOLDERS = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@asynccontextmanager
async def _many(database: Database, number: int) -> AsyncIterator[list[PostgresStore]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened_store(database.url, pool_size=2)) for _ in range(number)]


async def _due(store: PostgresStore, *, inline: bool = False) -> Schedule:
    """Declare a schedule and move the clock to its first occurrence."""
    schedules = PostgresSchedules(store)
    new = new_schedule(job=None) if inline else new_schedule()
    await schedules.declare([new])
    await PostgresClock(store).freeze(START + MINUTE)
    (schedule,) = (await schedules.due(["report"])).due
    return schedule


async def test_twenty_processes_make_one_job_for_one_occurrence(database: Database) -> None:
    async with _many(database, 5) as stores:
        schedule = await _due(stores[0])
        for occurrence in range(10):
            seen = replace(schedule, next_occurrence=schedule.next_occurrence + occurrence * MINUTE)
            won = await asyncio.gather(*(advanced(PostgresSchedules(store), seen) for store in stores * 4))
            assert sum(won) == 1
        assert (await PostgresReader(stores[0]).count())[JobState.READY] == 10
        assert len(await PostgresRuns(stores[0]).list("report", 100)) == 10


async def test_one_of_twenty_processes_answers_a_request(database: Database) -> None:
    async with _many(database, 5) as stores:
        schedule = await _due(stores[0])
        await PostgresSchedules(stores[0]).run_now("report")
        seen = replace(schedule, run_now=1)
        attempts = (
            advanced(PostgresSchedules(store), seen, next_occurrence=seen.next_occurrence) for store in stores * 4
        )
        assert sum(await asyncio.gather(*attempts)) == 1
        assert (await PostgresReader(stores[0]).count())[JobState.READY] == 1


async def test_a_locked_schedule_is_skipped(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        schedule = await _due(store)
        async with connection.transaction():
            await connection.execute("UPDATE holdfast.schedule SET paused = true")
            async with asyncio.timeout(20):
                assert not await advanced(PostgresSchedules(store), schedule)
                assert not await PostgresSchedules(store).put_back(schedule, schedule.next_occurrence - MINUTE)
        assert not await advanced(PostgresSchedules(store), schedule)
        await PostgresSchedules(store).resume(schedule, schedule.next_occurrence)
        assert await advanced(PostgresSchedules(store), schedule)


async def test_processes_declaring_concurrently_agree(database: Database) -> None:
    names = [f"schedule-{number}" for number in range(20)]
    async with _many(database, 5) as stores:
        for timetable in ("1 * * * *", "2 * * * *"):
            new = [new_schedule(name=name, timetable=timetable) for name in names]
            orders = (new, new[::-1], new[5:] + new[:5], new, new[::-1])
            await asyncio.gather(
                *(PostgresSchedules(store).declare(order) for store, order in zip(stores, orders, strict=True))
            )
            found = await PostgresSchedules(stores[0]).list()
            assert [schedule.name for schedule in found] == sorted(names)
            assert {schedule.timetable for schedule in found} == {timetable}


async def test_declaring_again_writes_and_locks_nothing(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await _due(store)
        before = await connection.fetchval("SELECT xmin::text FROM holdfast.schedule")
        async with connection.transaction(), asyncio.timeout(20):
            await connection.execute("SELECT FROM holdfast.schedule FOR UPDATE")
            await PostgresSchedules(store).declare([new_schedule()])
        assert await connection.fetchval("SELECT xmin::text FROM holdfast.schedule") == before


@pytest.mark.parametrize("text", ["nightly", "weekly", "", "Zürich → 東京", "a" * 1000])
async def test_a_lock_has_the_documented_number(database: Database, text: str) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        assert await connection.fetchval("SELECT holdfast.lock_key($1)", text) == lock_key(text)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", lock_key(text))
            async with PostgresSchedules(store).singleton(text) as held:
                assert held is None
        async with PostgresSchedules(store).singleton(text) as held:
            assert held is not None
            assert not await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_key(text))


def test_a_known_number() -> None:
    """`printf nightly | sha256sum` begins with these digits."""
    assert lock_key("nightly") == 0x2A3B62B53DDB9F16
    assert lock_key("weekly") == -8624132781205699744


async def test_of_ten_at_one_lock_one_gets_it(database: Database) -> None:
    async with _many(database, 10) as stores:
        everybody_tried = asyncio.Barrier(len(stores))

        async def attempt(store: PostgresStore) -> bool:
            async with PostgresSchedules(store).singleton("nightly") as held:
                await everybody_tried.wait()
                return held is not None

        for _ in range(5):
            assert sum(await asyncio.gather(*(attempt(store) for store in stores))) == 1


async def test_a_killed_connection_is_noticed_and_frees_the_lock(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as admin:
        schedule = await _due(store, inline=True)
        schedules, runs = PostgresSchedules(store), PostgresRuns(store)
        async with schedules.singleton("report") as held:
            assert held is not None
            run = await runs.start(NewRun("report", "me", schedule.next_occurrence))
            await admin.execute(f"SELECT pg_terminate_backend(pid) FROM ({_HOLDERS}) AS holder")
            async with asyncio.timeout(30):
                await held.lost()
            assert await _is_free(schedules)
            with pytest.raises(StoreUnavailable):
                await held.done(schedule, START + 2 * MINUTE, schedule.next_occurrence, run, encode({}), None)
            with pytest.raises(StoreUnavailable):
                await held.due("report")
        assert (await schedules.due(["report"])).due == [schedule]
        assert [each.finished_at for each in await runs.list("report", 10)] == [None]


async def test_done_fails_even_before_the_loss_is_noticed(database: Database) -> None:
    """The event loop was busy, and the very next thing it does is mark the occurrence."""
    async with opened_store(database.url) as store:
        schedule = await _due(store, inline=True)
        async with PostgresSchedules(store).singleton("report") as held:
            assert held is not None
            run = await PostgresRuns(store).start(NewRun("report", "me"))
            with psycopg.connect(database.url, autocommit=True) as blocking:
                blocking.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({_HOLDERS}) AS holder".encode())
            with pytest.raises(StoreUnavailable):
                await held.done(schedule, START + 2 * MINUTE, schedule.next_occurrence, run, None, None)
        assert (await PostgresSchedules(store).due(["report"])).due == [schedule]


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """A TCP proxy to the test's database that can be cut off."""
    with Proxy.before(database.url) as proxy:
        yield proxy


@pytest.fixture
def impatient_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PING_SECONDS", 0.05)
    monkeypatch.setattr(lock, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(lock, "_STATEMENT_SECONDS", 0.3)


async def test_a_silent_connection_is_abandoned(database: Database, proxy: Proxy, impatient_lock: None) -> None:
    async with opened_store(database.url) as store:
        schedule = await _due(store, inline=True)
        async with held_lock(partial(open_connection, proxy.url), "holdfast", "report") as held:
            assert held is not None
            proxy.swallow()
            async with asyncio.timeout(30):
                await held.lost()
            with pytest.raises(StoreUnavailable):
                await held.done(schedule, START + 2 * MINUTE, None, 1, None, None)
        proxy.flow()
        await until(lambda: _is_free(PostgresSchedules(store)), "the lock is free")


async def test_an_occurrence_cannot_be_marked_through_a_silent_connection(
    database: Database, proxy: Proxy, impatient_lock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PING_SECONDS", 600)
    async with opened_store(database.url) as store:
        schedule = await _due(store, inline=True)
        async with held_lock(partial(open_connection, proxy.url), "holdfast", "report") as held:
            assert held is not None
            proxy.swallow()
            with pytest.raises(StoreUnavailable):
                await held.done(schedule, START + 2 * MINUTE, None, 1, None, None)
            async with asyncio.timeout(30):
                await held.lost()
        assert (await PostgresSchedules(store).due(["report"])).due == [schedule]


async def test_a_cancellation_in_the_middle_of_a_statement_frees_the_lock(database: Database) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with (
        opened_store(database.url) as store,
        connected(database.url) as connection,
        connected(database.url) as observer,
    ):
        schedule = await _due(store, inline=True)
        schedules = PostgresSchedules(store)

        async def mark() -> None:
            async with schedules.singleton("report") as held:
                assert held is not None
                await held.done(schedule, START + 2 * MINUTE, None, 1, None, None)

        async with connection.transaction():
            await connection.execute("SELECT FROM holdfast.schedule FOR UPDATE")
            marking = asyncio.create_task(mark())
            await until(lambda: observer.fetchval(waiting), "the occurrence waits to be marked")
            marking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await marking
        await until(lambda: _is_free(schedules), "the lock is free")
        assert (await schedules.due(["report"])).due == [schedule]


async def test_a_watched_lock_stays_held_and_usable(database: Database, impatient_lock: None) -> None:
    """The checks of the lock and the statements of the work take turns on one connection."""
    async with opened_store(database.url) as store:
        schedule = await _due(store, inline=True)
        async with PostgresSchedules(store).singleton("report") as held:
            assert held is not None
            looks = await asyncio.gather(*(held.due("report") for _ in range(300)))
            assert all(look.due == [schedule] for look in looks)
            run = await PostgresRuns(store).start(NewRun("report", "me"))
            await held.done(schedule, START + 2 * MINUTE, None, run, None, None)
        assert (await PostgresSchedules(store).due(["report"])).due == []


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_blocked_event_loop_does_not_lose_the_lock(
    database: Database, impatient_lock: None, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def hold() -> bool:
        async with held_lock(partial(open_connection, database.url), "holdfast", "report") as held:
            assert held is not None
            losing = asyncio.create_task(held.lost())
            for _ in range(15):
                # Block for longer than a response may take, like a handler that should have been a plain `def`.
                time.sleep(0.35)  # noqa: ASYNC251
                await asyncio.sleep(0)
            is_lost = losing.done()
            losing.cancel()
            await held.due("report")
            return is_lost

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert not runner.run(hold())


async def test_a_held_lock_does_not_pin_the_vacuum_horizon(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await connection.execute(
            f"ALTER DATABASE {database.name} SET default_transaction_isolation = 'repeatable read'"
        )
        schedule = await _due(store, inline=True)
        async with PostgresSchedules(store).singleton("report") as held:
            assert held is not None
            query = f"SELECT state, backend_xmin, backend_xid FROM pg_stat_activity WHERE pid IN ({_HOLDERS})"
            assert [tuple(row) for row in await connection.fetch(query)] == [("idle in transaction", None, None)]
            assert (await held.due("report")).due == [schedule]
            assert [tuple(row) for row in await connection.fetch(query)] == [("idle in transaction", None, None)]


async def test_the_servers_transaction_timeouts_do_not_end_the_lock(database: Database) -> None:
    async with connected(database.url) as connection:
        version = connection.get_server_version().major
        for name in ("idle_in_transaction_session_timeout", *(["transaction_timeout"] if version >= 17 else [])):
            await connection.execute(f"ALTER DATABASE {database.name} SET {name} = '150ms'")
        async with opened_store(database.url) as store:
            schedule = await _due(store, inline=True)
            async with PostgresSchedules(store).singleton("report") as held:
                assert held is not None
                # Wait longer than the timeouts, measured by the server that would enforce them.
                await connection.execute("SELECT pg_sleep(0.6)")
                run = await PostgresRuns(store).start(NewRun("report", "me"))
                await held.done(schedule, START + 2 * MINUTE, None, run, None, None)
            assert (await PostgresSchedules(store).due(["report"])).due == []


async def _is_free(schedules: ScheduleStore) -> bool:
    async with schedules.singleton("report") as other:
        return other is not None
