"""The listener: it is woken for its queues, recovers from every outage, and producers know when its worker sleeps."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.store.opening import migrate
from holdfast.wake import postgres
from holdfast.wake.postgres import Listener, channel, listener_url
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import job
from tests.wake.conftest import Lines
from tests.wake.ear import TEAM, Ear, Ring, fall_asleep, listening
from tests.worker.harness import PATIENCE, until

QUICK = timedelta(milliseconds=200)
HOLDER = UUID("00000000-0000-4000-8000-000000000007")
one_server = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


class Listening:
    """A running listener and a record of every wake-up that it gave."""

    def __init__(
        self,
        url: str,
        schema: str = "holdfast",
        queues: tuple[str, ...] = ("default", "mail"),
        holder: UUID = HOLDER,
    ) -> None:
        self.calls: list[str | None] = []
        self.listener = Listener(
            url, schema, queues, self.calls.append, holder=holder, team=TEAM, ping=QUICK, patience=timedelta(seconds=1)
        )

    async def up(self) -> None:
        await until(lambda: self.listener.is_listening and None in self.calls, "listening")

    async def registered(self) -> None:
        await until(lambda: self.listener.asleep() is not None, "registered as asleep")

    async def woken(self, queue: str | None) -> None:
        await until(lambda: queue in self.calls, f"woken for {queue}")


@asynccontextmanager
async def running(listening: Listening) -> AsyncIterator[Listening]:
    task = asyncio.create_task(listening.listener.run())
    try:
        yield listening
    finally:
        listening.listener.stop()
        async with asyncio.timeout(PATIENCE):
            await task
    assert not listening.listener.is_listening


async def rows(url: str) -> list[tuple[Any, ...]]:
    async with connected(url) as connection:
        return [
            tuple(row)
            for row in await connection.fetch(
                "SELECT queue, holder, until, xmin::text FROM holdfast.sleeper ORDER BY 1"
            )
        ]


async def enqueue(url: str, *queues: str) -> None:
    async with opened_store(url) as store:
        await store.enqueue([job(queue=queue) for queue in queues])


async def terminate_listener(url: str) -> None:
    async with connected(url) as connection:
        killed = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    assert len(killed) == 1


async def test_it_wakes_for_its_queues_only(database: Database) -> None:
    async with running(Listening(database.url)) as at:
        await at.registered()
        async with connected(database.url) as connection:
            await fall_asleep(connection, uuid4(), ["other"])
        at.calls.clear()
        await enqueue(database.url, "other")
        await enqueue(database.url, "mail", "mail")
        await at.woken("mail")
        assert at.calls == ["mail"]


async def test_each_connection_and_each_registration_causes_one_more_look(database: Database) -> None:
    async with running(Listening(database.url)) as at:
        await at.up()
        assert at.calls == [None]
        assert await rows(database.url) == []
        assert at.listener.asleep() is None
        await until(lambda: len(at.calls) == 2, "one more look")
        assert at.calls == [None, None]
        assert at.listener.asleep() is not None
        assert [row[:2] for row in await rows(database.url)] == [("default", HOLDER), ("mail", HOLDER)]


async def test_a_worker_asleep_before_the_connection_opens_is_registered_with_one_look(database: Database) -> None:
    at = Listening(database.url)
    assert at.listener.asleep() is None
    async with running(at):
        await at.up()
        assert at.calls == [None]
        assert len(await rows(database.url)) == 2


async def test_a_flicker_between_busy_and_idle_writes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow machine must not fail this test: a minute of being busy is no flicker, and a long sleep is renewed.
    for name in ("_LINGER_SECONDS", "_RENEW_SECONDS"):
        monkeypatch.setattr(postgres, name, 600.0)
    async with running(Listening(database.url)) as at:
        await at.registered()
        before = await rows(database.url)
        for _ in range(100):
            at.listener.awake(is_full=True)
            await asyncio.sleep(0.005)
            assert at.listener.asleep() is not None
        assert await rows(database.url) == before


async def test_a_busy_worker_is_no_longer_notified_and_can_sleep_again(database: Database) -> None:
    async with running(Listening(database.url)) as at:
        await at.registered()
        at.listener.awake(is_full=True)

        async def is_forgotten() -> bool:
            return await rows(database.url) == []

        await until(is_forgotten, "the rows are removed")
        at.calls.clear()
        assert at.listener.asleep() is None
        await at.woken(None)
        assert len(await rows(database.url)) == 2


async def test_a_job_wakes_one_of_several_sleepers(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_LATER_SECONDS", 600.0)
    holders = [uuid4() for _ in range(5)]
    crowd = [Listening(database.url, holder=holder) for holder in holders]
    async with AsyncExitStack() as exits:
        for each in crowd:
            await exits.enter_async_context(running(each))
            await each.registered()
        for each in crowd:
            each.calls.clear()
        await enqueue(database.url, "mail")
        await until(lambda: any(each.calls for each in crowd), "one is woken")
        async with connected(database.url) as connection:
            # Notifications arrive in commit order: a listener that hears these has heard everything before them.
            for holder in holders:
                await connection.execute("SELECT pg_notify($1, 'now:default')", channel(holder))
        for each in crowd:
            await each.woken("default")
        assert sum(each.calls.count("mail") for each in crowd) == 1


async def ring(url: str, how: str, queue: str = "mail", holder: UUID = HOLDER) -> None:
    async with connected(url) as connection:
        await connection.execute("SELECT pg_notify($1, $2)", channel(holder), f"{how}:{queue}")


@asynccontextmanager
async def in_company(database: Database) -> AsyncIterator[tuple[Listening, Ear, UUID]]:
    """A sleeping listener and another sleeper of its team."""
    async with listening(database.url) as ear:
        other = await ear.asleep("mail", "default")
        async with running(Listening(database.url)) as at:
            await at.registered()
            at.calls.clear()
            yield at, ear, other


async def no_rows_but(url: str, other: UUID) -> bool:
    return {row[1] for row in await rows(url)} == {other}


@pytest.mark.parametrize("how", ["now", "passed", "later"])
async def test_a_woken_worker_without_a_free_slot_wakes_another_and_unregisters(
    database: Database, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LATER_SECONDS", 0.05)
    monkeypatch.setattr(postgres, "_LINGER_SECONDS", 600.0)
    async with in_company(database) as (at, ear, other):
        await ring(database.url, how)
        await at.woken("mail")
        at.listener.looks()
        at.listener.awake(is_full=False)
        assert await ear.rings() == [], "it may still find that there is nothing more"
        at.listener.looks()
        at.listener.awake(is_full=True)
        await until(lambda: no_rows_but(database.url, other), "its rows are gone")
        assert await ear.rings() == [Ring(other, "passed", "mail")]


async def test_a_woken_worker_that_finds_nothing_more_wakes_no_other(database: Database) -> None:
    async with in_company(database) as (at, ear, _):
        await ring(database.url, "now")
        await at.woken("mail")
        at.listener.looks()
        assert at.listener.asleep() is not None
        at.listener.looks()
        at.listener.awake(is_full=True)
        await ring(database.url, "now", "default")
        await at.woken("default")
        assert await ear.rings() == []


@pytest.mark.parametrize(("how", "is_passed"), [("now", True), ("passed", False)])
async def test_a_worker_at_the_limit_of_a_kind_passes_on_a_producers_ring_and_stays_asleep(
    database: Database, how: str, is_passed: bool
) -> None:
    """If all of them are at the limit, the ring must not go around forever."""
    async with in_company(database) as (at, ear, other):
        await ring(database.url, how)
        await at.woken("mail")
        at.listener.looks()
        assert at.listener.asleep(is_short=True) is not None
        await ring(database.url, "now", "default")
        await at.woken("default")
        at.listener.looks()
        assert at.listener.asleep() is not None

        async def is_heard() -> bool:
            return await ear.rings() == [Ring(other, "passed", "mail")]

        if is_passed:
            await until(is_heard, "the other is woken")
        assert await ear.rings() == []
        assert len(await rows(database.url)) == 4


async def test_the_only_sleeper_wakes_no_other_and_stays_registered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LINGER_SECONDS", 600.0)
    async with running(Listening(database.url)) as at:
        await at.registered()
        before = await rows(database.url)
        await ring(database.url, "now")
        await at.woken("mail")
        at.listener.looks()
        at.listener.awake(is_full=True)
        assert at.listener.asleep() is not None
        assert await rows(database.url) == before


async def test_an_earlier_look_replaces_the_requested_later_look(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LATER_SECONDS", 0.2)
    async with in_company(database) as (at, _, _other):
        await ring(database.url, "later")
        await ring(database.url, "now", "default")
        await at.woken("default")
        heard_by = time.monotonic()
        at.listener.looks()
        at.listener.asleep()
        await until(lambda: time.monotonic() > heard_by + 0.3, "the time is over")
        assert "mail" not in at.calls
        await ring(database.url, "later")
        await at.woken("mail")


async def test_a_long_sleep_is_renewed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_RENEW_SECONDS", 0.1)
    async with running(Listening(database.url)) as at:
        await at.registered()
        first = await rows(database.url)
        at.calls.clear()

        async def is_renewed() -> bool:
            return all(new[2] > old[2] for new, old in zip(await rows(database.url), first, strict=True))

        await until(is_renewed, "renewed")
        assert at.calls == []


async def test_a_listener_that_stops_leaves_no_rows(database: Database) -> None:
    async with running(Listening(database.url)) as at:
        await at.registered()
    assert await rows(database.url) == []


async def test_the_next_listener_removes_the_rows_of_dead_workers(database: Database) -> None:
    async with connected(database.url) as connection:
        for left in (timedelta(minutes=-2), timedelta(minutes=2)):
            await fall_asleep(connection, uuid4(), ["default"], left)
    async with running(Listening(database.url)) as at:
        await at.up()
        assert len(await rows(database.url)) == 1


@pytest.mark.parametrize("seconds", [0.0, 60.0])
async def test_a_sleeping_listener_removes_the_rows_of_dead_workers_now_and_then(
    database: Database, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(postgres, "_RENEW_SECONDS", 0.1)
    monkeypatch.setattr(postgres, "_FORGET_SECONDS", seconds)
    async with running(Listening(database.url, queues=("default",))) as at:
        await at.registered()
        async with connected(database.url) as connection:
            dead = uuid4()
            await fall_asleep(connection, dead, ["default"], timedelta(minutes=-2))
        versions: set[str] = set()

        async def is_renewed() -> bool:
            versions.update(row[3] for row in await rows(database.url) if row[1] == HOLDER)
            return len(versions) >= 3

        await until(is_renewed, "renewed twice")
        assert (dead in {row[1] for row in await rows(database.url)}) == (seconds > 0)


@pytest.mark.fault
async def test_a_killed_connection_is_replaced_at_once_with_one_warning(database: Database, lines: Lines) -> None:
    async with running(Listening(database.url)) as at:
        await at.registered()
        for outage in range(1, 4):
            at.calls.clear()
            await terminate_listener(database.url)
            await until(lambda outage=outage: lines.returns == outage, "listening again")  # type: ignore[misc]
            await at.woken(None)
            assert set(at.calls) == {None}
            assert lines.outages == outage
            await enqueue(database.url, "mail")
            await at.woken("mail")


@one_server
@pytest.mark.fault
@pytest.mark.parametrize("is_asleep", [True, False])
async def test_a_lost_connection_wakes_a_worker_that_relied_on_notifications(
    database: Database, proxy: Proxy, lines: Lines, is_asleep: bool
) -> None:
    """Its wait may be longer than a poll. A worker that is awake looks anyway."""
    async with running(Listening(proxy.url)) as at:
        await (at.registered if is_asleep else at.up)()
        at.calls.clear()
        proxy.refuse()
        await until(lambda: lines.outages == 1, "the loss is noticed")
        assert at.calls == [None] * is_asleep


@one_server
@pytest.mark.fault
async def test_a_link_that_swallows_everything_is_noticed_and_replaced(
    database: Database, proxy: Proxy, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_RENEW_SECONDS", 3600.0)
    async with running(Listening(proxy.url)) as at:
        await at.registered()
        proxy.swallow()
        await until(lambda: not at.listener.is_listening, "the dead link is noticed")
        assert at.listener.asleep() is None
        await until(lambda: lines.outages == 1, "one warning")
        at.calls.clear()
        proxy.flow()
        await at.up()
        await enqueue(database.url, "default")
        await at.woken("default")
    assert (lines.outages, lines.returns) == (1, 1)


@one_server
@pytest.mark.fault
async def test_the_listener_waits_for_a_database_that_is_down_at_the_start(
    database: Database, proxy: Proxy, lines: Lines
) -> None:
    proxy.refuse()
    async with running(Listening(proxy.url)) as at:
        await until(lambda: lines.outages == 1, "one warning")
        assert (at.listener.is_listening, at.calls) == (False, [])
        proxy.flow()
        await at.up()
    assert (lines.outages, lines.returns) == (1, 1)


@one_server
@pytest.mark.fault
@pytest.mark.parametrize("moment", ["connecting", "listening"])
async def test_a_database_that_hangs_does_not_keep_the_listener_from_stopping(
    database: Database, proxy: Proxy, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every wait for an answer lasts longer than the test.
    monkeypatch.setattr(postgres, "_CONNECT_SECONDS", 600.0)
    if moment == "connecting":
        proxy.swallow()
    at = Listening(proxy.url)
    task = asyncio.create_task(at.listener.run())
    if moment == "listening":
        await at.registered()
        proxy.swallow()
    await asyncio.sleep(0)
    at.listener.stop()
    async with asyncio.timeout(PATIENCE):
        await task


@one_server
async def test_a_canceled_listener_leaves_nothing_behind(database: Database) -> None:
    at = Listening(database.url)
    task = asyncio.create_task(at.listener.run())
    await at.registered()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@one_server
async def test_a_missing_schema_is_one_clear_warning(empty_database: Database, lines: Lines) -> None:
    async with running(Listening(empty_database.url)) as at:
        await until(lambda: lines.outages == 1, "one warning")
        await migrate(empty_database.url, "holdfast")
        await at.up()
    assert len(lines.warnings) == 1
    assert "run `holdfast migrate`" in lines.warnings[0]


def test_behind_pgbouncer_it_needs_a_separate_address(lines: Lines) -> None:
    direct, pooled = "postgresql://a@db/jobs", "postgresql://a@bouncer/jobs?pgbouncer=1"
    assert listener_url(direct, None) == direct
    assert listener_url(pooled, direct) == direct
    assert lines.warnings == []
    assert listener_url(pooled, None) is None
    assert "HOLDFAST_LISTEN_URL" in lines.warnings[0]


async def test_an_invalid_address_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="address cannot be read"):
        Listener("postgresql://a:b@[db/jobs", "holdfast", ["default"], lambda _: None)


@one_server
@pytest.mark.parametrize("others", [0, 4])
async def test_a_listener_unregisters_during_a_storm_of_rings_until_it_is_quieter(
    database: Database, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Each of five sleepers hears a fifth of the rings, which then are a hundred per second."""
    monkeypatch.setattr(postgres, "_MOST_RINGS_PER_SECOND", 1)
    monkeypatch.setattr(postgres, "_QUIET_SECONDS", 5.0)
    async with connected(database.url) as connection:
        for _ in range(others):
            await fall_asleep(connection, uuid4(), ["mail", "default"])
        async with running(Listening(database.url)) as at:
            await at.registered()
            at.calls.clear()
            most = 50 // (others + 1)
            for number in range(1, most + 1):
                await connection.execute("SELECT pg_notify($1, 'now:mail')", channel(HOLDER))
                await until(lambda number=number: at.calls.count("mail") == number, "woken")  # type: ignore[misc]

            async def has_no_rows() -> bool:
                return HOLDER not in {row[1] for row in await rows(database.url)}

            # Now no rings come. Later it looks once for everything that came in the meantime, without being asked.
            await until(has_no_rows, "its rows are gone")
            await at.woken(None)
            assert at.calls.count("mail") == most
            assert len([row for row in await rows(database.url) if row[1] == HOLDER]) == 2
