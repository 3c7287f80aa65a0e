"""Lost rings, dead connections and an unavailable store delay a wait but never lose it."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast import InvalidInput, JobState, StoreUnavailable
from holdfast.errors import SchemaMismatch
from holdfast.store.postgres.waiters import PostgresWaiters
from holdfast.waits.watch import Pacing
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, connected, refusing
from tests.waits.steps import (
    POLLS_ALONE,
    RINGS_ALONE,
    all_of,
    kill_listeners,
    registered,
    until_registered,
    waiting_in,
)
from tests.wake.conftest import Lines
from tests.worker.harness import until

pytestmark = pytest.mark.fault
one_server = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def test_a_killed_listener_reconnects_and_looks_for_missed_rings(emptied: Database, lines: Lines) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE) as scene, connected(emptied.url) as connection:
        leased = await scene.running(3)
        tasks = [scene.waiting(each.id) for each in leased]
        await until_registered(emptied.url, 3)
        for number, each in enumerate(leased[:2], 1):
            # The finish commits while no listener is connected to hear it.
            async with connection.transaction():
                finish = "SELECT holdfast.finish_in_transaction($1, $2, NULL)"
                await connection.execute(finish, each.id, each.lease.claim)
                assert await kill_listeners(connection) == 1
            await all_of(tasks[number - 1 : number])
            await until(lambda number=number: lines.returns == number, "listening again")  # type: ignore[misc]
        await scene.finish(leased[2:])
        assert {each.state for each in await all_of(tasks)} == {JobState.SUCCEEDED}
    assert (lines.outages, lines.returns) == (2, 2)


async def test_rows_lost_in_a_server_crash_are_written_again(emptied: Database, lines: Lines) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE) as scene, connected(emptied.url) as connection:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id)
        await until_registered(emptied.url, 1)
        # What a crash does to an unlogged table, and to connections.
        await connection.execute("TRUNCATE holdfast.waiter")
        assert await kill_listeners(connection) == 1
        await until_registered(emptied.url, 1)
        assert lines.returns == 1
        await scene.finish([leased])
        await all_of([waiting])


async def test_a_silently_dead_connection_is_replaced_without_missing_a_ring(
    emptied: Database, emptied_proxy: Proxy, lines: Lines
) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE, listen_url=emptied_proxy.url) as scene:
        leased = await scene.running(2)
        tasks = [scene.waiting(each.id) for each in leased]
        await until_registered(emptied.url, 2)
        emptied_proxy.half_open()
        await scene.finish(leased[:1])
        assert (await all_of(tasks[:1]))[0].state is JobState.SUCCEEDED
        await until(lambda: lines.returns == 1, "listening again")
        await scene.finish(leased[1:])
        await all_of(tasks)
    assert (lines.outages, lines.returns) == (1, 1)


async def test_polling_ends_a_wait_whose_listener_never_connects(
    emptied: Database, emptied_proxy: Proxy, lines: Lines
) -> None:
    emptied_proxy.refuse()
    async with waiting_in(emptied.url, POLLS_ALONE, listen_url=emptied_proxy.url) as scene:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id)
        await until(lambda: lines.outages == 1, "one warning")
        await scene.finish([leased])
        await all_of([waiting])
        assert await registered(emptied.url) == []


async def test_behind_pgbouncer_without_a_listen_url_waits_poll_and_warn_once(emptied: Database, lines: Lines) -> None:
    async with waiting_in(f"{emptied.url}&pgbouncer=1", Pacing(poll=0.02, linger=0.0)) as scene:
        for leased in await scene.running(2):
            waiting = scene.waiting(leased.id)
            await asyncio.sleep(0)
            await scene.finish([leased])
            await all_of([waiting])
        assert await registered(emptied.url) == []
    assert len(lines.warnings) == 1
    assert "HOLDFAST_LISTEN_URL" in lines.warnings[0]


async def test_a_hanging_listener_does_not_keep_waits_from_closing(emptied: Database, emptied_proxy: Proxy) -> None:
    async with waiting_in(emptied.url, RINGS_ALONE, listen_url=emptied_proxy.url) as scene:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id)
        await until_registered(emptied.url, 1)
        emptied_proxy.swallow()
        async with asyncio.timeout(10):
            await scene.waits.close()
        with pytest.raises(StoreUnavailable, match="the app was closed during the wait"):
            await waiting
    assert await registered(emptied.url) == []


@one_server
async def test_a_wait_survives_an_outage_of_the_store(database: Database, lines: Lines) -> None:
    async with waiting_in(database.url, POLLS_ALONE) as scene:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id)
        await until_registered(database.url, 1)
        with refusing(database.url):
            await until(lambda: any("waits continue" in line for line in lines.warnings), "the outage is noticed")
            assert not waiting.done()
        await scene.finish([leased])
        assert (await all_of([waiting]))[0].state is JobState.SUCCEEDED
    assert sum("waits continue" in line for line in lines.warnings) == 1


@one_server
async def test_a_wait_whose_store_is_unavailable_at_the_timeout_raises_store_unavailable(database: Database) -> None:
    async with waiting_in(database.url) as scene:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id, timedelta(seconds=1))
        await until_registered(database.url, 1)
        with refusing(database.url), pytest.raises(StoreUnavailable, match="did not answer before the wait was over"):
            await waiting
        assert (await scene.wait(leased.id, timedelta(0))).state is JobState.RUNNING


async def test_waits_that_cannot_be_registered_are_polled_with_one_warning(
    emptied: Database, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = PostgresWaiters.register
    asked: list[UUID] = []

    async def refuse(self: PostgresWaiters, holder: UUID, waits: Mapping[UUID, timedelta]) -> None:
        asked.extend(waits)
        raise InvalidInput("PostgreSQL refused: permission denied for table waiter")

    monkeypatch.setattr(PostgresWaiters, "register", refuse)
    async with waiting_in(emptied.url, Pacing(poll=0.02)) as scene:
        one, two = await scene.running(2)
        tasks = [scene.waiting(each.id) for each in (one, two)]
        await until(lambda: asked.count(two.id) >= 3, "retried repeatedly")
        await scene.finish([one])
        await all_of(tasks[:1])
        monkeypatch.setattr(PostgresWaiters, "register", allowed)
        await until_registered(emptied.url, 1)
        await scene.finish([two])
        await all_of(tasks)
    assert len(lines.warnings) == 1
    assert lines.warnings[0].startswith("no notifications for waits; polling continues")


@one_server
async def test_dropping_the_schema_ends_waits_with_the_reason(database: Database) -> None:
    async with waiting_in(database.url, POLLS_ALONE) as scene, connected(database.url) as connection:
        (leased,) = await scene.running()
        waiting = scene.waiting(leased.id)
        await until_registered(database.url, 1)
        await connection.execute("DROP SCHEMA holdfast CASCADE")
        with pytest.raises(SchemaMismatch, match="run `holdfast migrate`"):
            await waiting
