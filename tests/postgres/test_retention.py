"""Retention continues despite obstacles, and removed jobs do not reappear in any form."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob
from holdfast.domain.job import IfExists, JobState, NewJob
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Finish, Retrying
from holdfast.store.postgres import enqueuing
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.past import (
    RETENTION,
    add_days,
    day_of,
    days_with_partitions,
    id_of,
    is_sound,
    prune_held_open,
    pruned,
    skipped,
)
from tests.store_contract.steps import ENDINGS, job, wants
from tests.worker.harness import until

LONG = timedelta(days=1000)
SUCCEED = Transition(Move.SUCCEED)
OLDEST, LATER = 8, 5
FAIL = ENDINGS["fail"]


async def ended(store: PostgresStore, days_ago: int, transition: Transition = SUCCEED, key: str | None = None) -> UUID:
    """Enqueue a job with the ID of an old day and end it now."""
    new = job(id=id_of(days_ago), key=key)
    await store.enqueue([new])
    await end(store, transition)
    return new.id


async def end(store: PostgresStore, transition: Transition = SUCCEED) -> None:
    await store.finish([Finish(each.lease, transition) for each in await store.claim(wants(limit=500, lease=LONG))])


async def enqueue_undroppable(store: PostgresStore, days_ago: int) -> None:
    """Enqueue more jobs than a drop may move under its locks, all due long after the retention."""
    payloads = [Json(f'"{random.randbytes(500_000).hex()}"') for _ in range(5)]
    await store.enqueue(
        [job(id=id_of(days_ago), kind="later", payload=each, delay=timedelta(days=300)) for each in payloads]
    )


# Keys


async def test_a_day_that_cannot_be_dropped_does_not_keep_the_keys_of_later_days(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        await enqueue_undroppable(store, OLDEST)
        gone = await ended(store, LATER, key="report")
        await PostgresClock(store).advance(timedelta(days=10))
        await pruned(store)
        days = await days_with_partitions(connection)
        assert (day_of(OLDEST) in days, day_of(LATER) in days) == (True, False)
        assert await PostgresReader(store).get(gone) is None
        assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 0
        (again,) = await store.enqueue([job(key="report")])
        assert again.is_new


@pytest.mark.parametrize("if_exists", IfExists)
async def test_a_key_whose_job_is_gone_is_free_before_maintenance_removes_the_key(
    database: Database, if_exists: IfExists
) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        gone = await ended(store, LATER, key="report")
        await PostgresClock(store).advance(timedelta(days=10))
        async with prune_held_open(database.url, LATER):
            pass
        assert await connection.fetchval("SELECT job_id FROM holdfast.key") == gone
        (again,) = await store.enqueue([job(key="report", if_exists=if_exists)])
        assert again.is_new
        assert await connection.fetchval("SELECT job_id FROM holdfast.key") == again.id
        assert await store.enqueue([job(key="report")]) == [Enqueued(again.id, is_new=False)]
        assert (await pruned(store))["rows_swept"] == 0
        await is_sound(connection)


async def test_a_requested_window_starts_now_if_the_old_job_had_none_and_is_gone(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        await ended(store, LATER, key="report")
        await PostgresClock(store).advance(timedelta(days=10))
        async with prune_held_open(database.url, LATER):
            pass
        window = timedelta(days=1)
        (first,) = await store.enqueue([job(key="report", window=window)])
        assert first.is_new
        assert await store.enqueue([job(key="report", window=window)]) == [Enqueued(first.id, is_new=False)]
        await PostgresClock(store).advance(window)
        (second,) = await store.enqueue([job(key="report", window=window)])
        assert second.is_new


# Days that cannot be dropped


@asynccontextmanager
async def in_use(url: str) -> AsyncIterator[None]:
    """Open a transaction that has read a job and outlasts every drop's wait."""
    async with connected(url) as other, other.transaction():
        await other.execute("SELECT FROM holdfast.job LIMIT 1")
        yield


async def test_days_that_stay_in_use_are_pruned_one_by_one_and_dropped_later(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        gone = [await ended(store, days_ago, key=f"{days_ago}") for days_ago in (OLDEST, LATER)]
        dead = await ended(store, LATER, FAIL)
        await PostgresClock(store).advance(timedelta(days=10))
        recent = await ended(store, LATER)
        async with in_use(database.url):
            assert await skipped(store) == {
                f"{day_of(OLDEST)}: its partitions are in use, so its jobs are pruned one by one"
            }
            reader = PostgresReader(store)
            assert [await reader.get(id) for id in gone] == [None, None]
            assert await connection.fetchval("SELECT count(*) FROM holdfast.key") == 0
            assert {day_of(OLDEST), day_of(LATER)} <= set(await days_with_partitions(connection))
            await is_sound(connection)
        await pruned(store)
        assert await days_with_partitions(connection) == []
        assert await reader.get(dead) is not None
        assert await reader.get(recent) is not None
        await is_sound(connection)


async def test_a_recent_day_is_dropped_later_instead_of_pruned_one_by_one(database: Database) -> None:
    """Pruning is a hundred times slower, so it is reserved for days that could not be dropped all day."""
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, 1)
        old = await ended(store, 1)
        await PostgresClock(store).advance(RETENTION)
        async with in_use(database.url):
            assert await skipped(store) == {f"{day_of(1)}: its partitions are in use"}
            assert await PostgresReader(store).get(old) is not None


async def test_an_overdue_day_is_dropped_between_overlapping_transactions(database: Database) -> None:
    """Each transaction lasts longer than a drop usually waits, and the next one begins before it ends."""
    async with opened_store(database.url, pool_size=2) as store, connected(database.url) as connection:
        await add_days(connection, LATER)
        await PostgresClock(store).advance(timedelta(days=10))
        over = asyncio.Event()
        began = 0

        async def produce() -> None:
            nonlocal began
            async with connected(database.url) as producer:
                while not over.is_set():
                    async with producer.transaction():
                        await producer.execute("SELECT holdfast.enqueue('work', '{}')")
                        began += 1
                        await asyncio.sleep(0.4)

        async def start(number: int) -> None:
            await asyncio.sleep(0.1 * number)
            await produce()

        producers = [asyncio.ensure_future(start(number)) for number in range(4)]
        try:
            await until(lambda: began >= 4, "all of them are at work")
            await pruned(store)
        finally:
            over.set()
            await asyncio.gather(*producers)
        assert await days_with_partitions(connection) == []
        await is_sound(connection)


@pytest.mark.parametrize(("first", "seconds"), [("finished", 0.0), ("job", 1.0)])
async def test_a_patient_drop_gives_up_before_it_aborts_another_transaction(
    database: Database, first: str, seconds: float
) -> None:
    """The other transaction holds one table, wants another, and has waited longer than the drop when they deadlock."""
    async with (
        opened_store(database.url) as store,
        connected(database.url) as handler,
        connected(database.url) as other,
        connected(database.url) as watching,
    ):
        await add_days(watching, LATER)
        await PostgresClock(store).advance(timedelta(days=10))

        async with handler.transaction():
            await handler.execute("SELECT FROM holdfast.job_other LIMIT 1")
            async with other.transaction():
                await other.execute(f"SELECT FROM holdfast.{first} LIMIT 1")
                pruning = asyncio.ensure_future(skipped(store))
                await until(lambda: _waits(watching, 1, seconds), "the drop waits")
                reading = asyncio.ensure_future(handler.execute("SELECT FROM holdfast.job LIMIT 1"))
                await until(lambda: _waits(watching, 2), "the handler waits for the drop")
            await reading
        assert any("in use" in line for line in await pruning)


async def _waits(connection: "asyncpg.Connection[asyncpg.Record]", number: int, seconds: float = 0.0) -> bool:
    query = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND backend_type = 'client backend'
      AND clock_timestamp() - query_start >= $1
    """
    waiting: int = await connection.fetchval(query, timedelta(seconds=seconds))
    return waiting >= number


async def test_only_overdue_days_are_reported(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        maintenance = PostgresMaintenance(store)
        assert await maintenance.overdue_days(timedelta(days=OLDEST)) == []
        overdue = [day_of(days_ago) for days_ago in range(OLDEST, 3, -1)]
        assert (await maintenance.overdue_days(timedelta(days=2)))[: len(overdue)] == overdue
        assert day_of(2) not in await maintenance.overdue_days(timedelta(days=2))


# IDs of dead letters

_Way = Callable[[PostgresStore, NewJob], Awaitable[object]]


async def _by_sql(store: PostgresStore, new: NewJob) -> None:
    async with connected(store.url) as connection:
        await connection.execute("SELECT holdfast.enqueue('work', '{}', job_id => $1)", new.id)


_WAYS: dict[str, _Way] = {
    "alone": lambda store, new: store.enqueue([new]),
    "with others": lambda store, new: store.enqueue([job(), new, job()]),
    "by COPY": lambda store, new: store.enqueue([*(job() for _ in range(400)), new]),
    "with another key": lambda store, new: store.enqueue([job(id=new.id, key="other")]),
    "with the same key of another kind": lambda store, new: store.enqueue(
        [job(id=new.id, key="report", kind="another")]
    ),
    "from SQL": _by_sql,
}


@pytest.mark.parametrize("way", _WAYS)
async def test_the_id_of_a_dead_letter_is_refused_after_its_day_was_dropped(
    database: Database, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueuing, "_MORE_ROUND_TRIPS", 0)
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        dead = await ended(store, LATER, FAIL, key="report")
        await PostgresClock(store).advance(timedelta(days=10))
        await pruned(store)
        assert day_of(LATER) not in await days_with_partitions(connection)
        with pytest.raises((DuplicateJob, asyncpg.UniqueViolationError), match=f"{dead}.*exists"):
            await _WAYS[way](store, job(id=dead))
        assert await store.claim(wants()) == [], "nor is any of the others there"
        # A repeat of the original call returns its answer and makes no second job.
        assert await store.enqueue([job(id=dead, key="report")]) == [Enqueued(dead, is_new=False)]
        assert await store.retry([dead]) == [Retrying.READY]
        await end(store)
        await is_sound(connection)


async def test_a_repeated_call_after_its_window_finds_its_dead_letter(database: Database) -> None:
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await add_days(connection, OLDEST)
        new = job(id=id_of(LATER), key="report", window=timedelta(days=1))
        await store.enqueue([new])
        await end(store, FAIL)
        await PostgresClock(store).advance(timedelta(days=10))
        await pruned(store)
        assert await store.enqueue([new]) == [Enqueued(new.id, is_new=False)]
        assert (await PostgresReader(store).count())[JobState.READY] == 0
        (other,) = await store.enqueue([job(key="report")])
        assert other.is_new, "the key was left as it was found"
        await is_sound(connection)


@pytest.mark.parametrize("state", ["ready", "running", "succeeded"])
async def test_a_removed_dead_letter_leaves_a_job_with_the_same_id_alone(database: Database, state: str) -> None:
    """Such a job can no longer be made, but an earlier release or the application's own SQL may have made one."""
    async with opened_store(database.url) as store, connected(database.url) as connection:
        clock = PostgresClock(store)
        dead = await ended(store, 0, FAIL)
        await clock.advance(timedelta(days=20))
        await connection.execute("DELETE FROM holdfast.job; DELETE FROM holdfast.attempt_error")
        await connection.execute("ALTER TABLE holdfast.job_other DISABLE TRIGGER USER")
        await store.enqueue([job(id=dead, key="report")])
        leased = await store.claim(wants(lease=LONG)) if state != "ready" else []
        if state == "succeeded":
            await store.finish([Finish(each.lease, SUCCEED) for each in leased])
        batches = [batch async for batch in PostgresMaintenance(store).prune_dead_letters(timedelta(days=10))]
        assert batches[0].counts == {"dead_letters_pruned": 1}
        shown = await PostgresReader(store).get(dead)
        assert shown is not None
        assert (shown.state, shown.key) == (state, "report")
        assert await store.enqueue([job(key="report")]) == [Enqueued(dead, is_new=False)]
        await is_sound(connection)
