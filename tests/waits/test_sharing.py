"""The waits of a process share one connection and a few statements, and none of them is lost."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from random import Random
from typing import TypeVar
from uuid import UUID, uuid4

import pytest

from holdfast import Job, JobState
from holdfast.store.postgres.sql_files import statement
from holdfast.store.postgres.waiters import PostgresWaiters
from holdfast.waits.watch import Pacing
from tests.databases import Database, OneConnectionStore, connected
from tests.store_contract.steps import job
from tests.waits.steps import (
    POLLS_ALONE,
    RINGS_ALONE,
    all_of,
    connections,
    listeners,
    registered,
    until_registered,
    waiting_in,
)
from tests.worker.harness import until

Answer = TypeVar("Answer")

WAITERS = 500


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement ran."""
    asked: Counter[str] = Counter()
    not_live, read = PostgresWaiters.not_live, PostgresWaiters.read
    register, remove = PostgresWaiters.register, PostgresWaiters.remove

    async def count_not_live(self: PostgresWaiters, ids: Collection[UUID]) -> list[UUID]:
        asked["not_live"] += 1
        return await not_live(self, ids)

    async def count_read(self: PostgresWaiters, ids: Collection[UUID]) -> list[Job]:
        asked["read"] += 1
        return await read(self, ids)

    async def count_register(self: PostgresWaiters, holder: UUID, waits: Mapping[UUID, timedelta]) -> None:
        asked["register"] += 1
        await register(self, holder, waits)

    async def count_remove(self: PostgresWaiters, holder: UUID, ids: Collection[UUID]) -> None:
        asked["remove"] += 1
        await remove(self, holder, ids)

    monkeypatch.setattr(PostgresWaiters, "not_live", count_not_live)
    monkeypatch.setattr(PostgresWaiters, "read", count_read)
    monkeypatch.setattr(PostgresWaiters, "register", count_register)
    monkeypatch.setattr(PostgresWaiters, "remove", count_remove)
    return asked


async def test_five_hundred_waiters_are_woken_by_rings_over_one_extra_connection(
    emptied: Database, statements: Counter[str]
) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE) as scene:
        leased = await scene.running(WAITERS)
        before = await connections(emptied.url)
        tasks = [scene.waiting(each.id) for each in leased]
        await until_registered(emptied.url, WAITERS)
        assert await connections(emptied.url) == before + 1
        # One look at the start, one when the listener is connected, and one after the waits are registered.
        assert (statements["register"], statements["read"]) == (1, 0)
        assert statements["not_live"] <= 3
        await scene.finish(leased[:1])
        assert (await tasks[0]).state is JobState.SUCCEEDED
        assert not any(task.done() for task in tasks[1:])
        await scene.finish(leased[1:])
        assert [found.id for found in await all_of(tasks)] == [each.id for each in leased]
        # 499 ids fill three notifications, which may or may not arrive together.
        assert statements["read"] <= 4
        assert statements["not_live"] <= 3
        await until_registered(emptied.url, 0)
        assert statements["remove"] <= 4


async def test_a_thousand_races_between_wait_and_finish_leave_no_wait_hanging(emptied: Database) -> None:
    random = Random(7)
    async with waiting_in(emptied.url) as scene:

        async def later(act: Callable[[], Awaitable[Answer]]) -> Answer:
            await asyncio.sleep(random.uniform(0, 0.01))
            return await act()

        for _ in range(20):
            leased = await scene.running(50)
            waits = [asyncio.create_task(later(partial(scene.wait, each.id))) for each in leased]
            chunks = [leased[first : first + 5] for first in range(0, 50, 5)]
            await asyncio.gather(*(later(partial(scene.finish, chunk)) for chunk in chunks))
            found = await all_of(waits)
            assert [(each.id, each.state) for each in found] == [(each.id, JobState.SUCCEEDED) for each in leased]
    assert await registered(emptied.url) == []


async def test_an_early_look_finds_a_finish_that_did_not_see_the_wait(emptied: Database) -> None:
    never_polled = Pacing(soon=(0.02, 0.1, *[0.4] * 100), poll=3600.0)
    async with waiting_in(emptied.url, never_polled) as scene, connected(emptied.url) as connection:
        (leased,) = await scene.running()
        async with connection.transaction():
            await connection.execute(
                "SELECT holdfast.finish_in_transaction($1, $2, NULL)", leased.id, leased.lease.claim
            )
            waiting = scene.waiting(leased.id)
            await until_registered(emptied.url, 1)
        (found,) = await all_of([waiting])
        assert found.state is JobState.SUCCEEDED


async def test_waiting_for_a_final_job_neither_registers_nor_listens(
    emptied: Database, statements: Counter[str]
) -> None:
    async with waiting_in(emptied.url) as scene:
        one, two = await scene.running(2)
        await scene.finish([one])
        assert (await scene.wait(one.id)).state is JobState.SUCCEEDED
        assert (await scene.wait(two.id, timedelta(0))).state is JobState.RUNNING
        assert await scene.waits.wait([one.id, two.id], timedelta(0)) != {}
        assert statements["register"] == 0
        assert await listeners(emptied.url) == 0


async def test_polling_alone_ends_a_wait_without_a_row_or_an_extra_connection(emptied: Database) -> None:
    async with waiting_in(emptied.url, POLLS_ALONE, listen=False) as scene:
        one, two = await scene.running(2)
        tasks = [scene.waiting(each.id) for each in (one, two)]
        await scene.finish([one])
        await all_of(tasks[:1])
        assert not tasks[1].done()
        assert (await listeners(emptied.url), await registered(emptied.url)) == (0, [])
        await scene.finish([two])
        await all_of(tasks)


async def test_all_waits_together_are_polled_with_one_statement(emptied: Database, statements: Counter[str]) -> None:
    async with waiting_in(emptied.url, POLLS_ALONE, listen=False) as scene:
        leased = await scene.running(100)
        tasks = [scene.waiting(each.id) for each in leased]
        await until(lambda: statements["not_live"] >= 5, "five polls")
        assert statements["read"] == 0
        await scene.finish(leased)
        await all_of(tasks)
        assert statements["read"] == 1


async def test_a_canceled_wait_leaves_no_row_and_no_connection(emptied: Database) -> None:
    pacing = Pacing(sweep=0.01, linger=0.05)
    async with waiting_in(emptied.url, pacing) as scene:
        (leased,) = await scene.running()
        for _ in range(2):
            waiting = scene.waiting(leased.id)
            await until_registered(emptied.url, 1)
            assert await listeners(emptied.url) == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

            async def left_nothing() -> bool:
                return (await registered(emptied.url), await listeners(emptied.url)) == ([], 0)

            await until(left_nothing, "nothing is left")


async def test_a_timeout_leaves_no_row(emptied: Database) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE) as scene:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id, timedelta(seconds=1))
        await until_registered(emptied.url, 1)
        assert (await waiting).state is JobState.RUNNING
        await until_registered(emptied.url, 0)


async def test_a_longer_wait_for_the_same_job_extends_the_registration(emptied: Database) -> None:
    query = "SELECT max(until) > clock_timestamp() + interval '10 minutes' FROM holdfast.waiter"
    async with waiting_in(emptied.url, RINGS_ALONE) as scene, connected(emptied.url) as connection:
        (leased,) = await scene.running()
        tasks = [scene.waiting(leased.id)]
        await until_registered(emptied.url, 1)
        assert await connection.fetchval(query) is False
        tasks.append(scene.waiting(leased.id, timedelta(hours=1)))
        await until(lambda: connection.fetchval(query), "registered for longer")
        await scene.finish([leased])
        await all_of(tasks)


async def test_several_processes_wait_for_the_same_job(emptied: Database) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE) as one, waiting_in(emptied.url, RINGS_ALONE) as two:
        leased = await one.running(2)
        tasks = [scene.waiting(each.id) for scene in (one, two) for each in leased]
        await until_registered(emptied.url, 4)
        await two.finish(leased)
        assert {each.state for each in await all_of(tasks)} == {JobState.SUCCEEDED}


async def test_the_next_waiter_removes_expired_rows_of_dead_processes(emptied: Database) -> None:
    async with connected(emptied.url) as connection:
        for left in (timedelta(minutes=-2), timedelta(minutes=2)):
            await connection.execute(statement("wait_start", "holdfast"), uuid4(), [uuid4()], [left])
    async with waiting_in(emptied.url, RINGS_ALONE) as scene:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id)

        async def has_removed_the_expired_row() -> bool:
            rows = await registered(emptied.url)
            return leased.id in rows and len(rows) == 2

        await until(has_removed_the_expired_row, "the expired row is gone, the other remains")
        await scene.finish([leased])
        await all_of([waiting])


async def test_only_ready_and_running_jobs_are_live(emptied: Database) -> None:
    for url in ("memory:", emptied.url):
        async with waiting_in(url) as scene:
            waiters = scene.opened.waiters
            assert waiters is not None
            await scene.opened.store.enqueue([ready := job(kind="other"), canceled := job(kind="other")])
            await scene.opened.store.cancel([canceled.id])
            (running,) = await scene.running()
            unknown = uuid4()
            asked = [ready.id, canceled.id, running.id, unknown]
            assert set(await waiters.not_live(asked)) == {canceled.id, unknown}
            assert {each.id for each in await waiters.read(asked)} == {ready.id, canceled.id, running.id}


_OTHERS = (
    """
    INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
    SELECT gen_random_uuid(), holdfast.now(), 5, 'default', 'work' FROM generate_series(1, 20000)
    """,
    """
    INSERT INTO holdfast.finished (id, finished_at, attempt, losses, state)
    SELECT gen_random_uuid(), holdfast.now(), 1, 0, 'canceled' FROM generate_series(1, 20000)
    """,
)
_BLOCKS = """
SELECT sum(pg_stat_get_xact_blocks_fetched(relation.oid))::integer
FROM pg_class AS relation
LEFT JOIN pg_index AS index ON index.indexrelid = relation.oid
WHERE coalesce(index.indrelid, relation.oid)
      IN ('holdfast.ready'::regclass, 'holdfast.lease'::regclass, 'holdfast.finished_other'::regclass)
"""


async def test_a_look_does_not_scan_other_jobs_even_if_planned_for_empty_tables(
    emptied: Database,
) -> None:
    async with connected(emptied.url) as connection:
        store = OneConnectionStore(connection)
        waiters = PostgresWaiters(store)
        await connection.execute("VACUUM ANALYZE")
        for _ in range(7):
            await waiters.not_live([uuid4()])
            await waiters.read([uuid4()])
        jobs = [job() for _ in range(10)]
        await store.enqueue(jobs)
        await store.cancel([each.id for each in jobs])
        for others in _OTHERS:
            await connection.execute(others)
        asked = [each.id for each in jobs]
        for look in (waiters.not_live, waiters.read):
            async with connection.transaction():
                before = await connection.fetchval(_BLOCKS) or 0
                assert len(await look(asked)) == 10
                assert await connection.fetchval(_BLOCKS) - before <= 150, look
