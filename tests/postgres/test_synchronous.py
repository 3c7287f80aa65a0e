"""If a primary loses its synchronous standby, commits wait and no unreplicated commit is reported as done."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import asyncpg
import pytest

from holdfast import Enqueued, Holdfast, StoreUnavailable
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.postgres import connecting
from tests.databases import Database, DatabaseMaker, connected, no_task_left
from tests.worker.harness import until

pytestmark = pytest.mark.fault

SECOND = 1.0
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query NOT LIKE '%probe%'"
_JOBS = "SELECT count(*) FROM holdfast.job"


@pytest.fixture(scope="module")
def primary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseMaker]:
    with EmbeddedServer.start(EmbeddedAddress(tmp_path_factory.mktemp("primary") / "postgres")) as server:
        maker = DatabaseMaker(server)
        yield maker
        maker.close()


@pytest.fixture
async def database(threads_end: None, primary: DatabaseMaker) -> AsyncIterator[Database]:
    with primary.fresh_database() as database:
        async with no_task_left():
            yield database


@asynccontextmanager
async def without_standby(database: Database) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Make every commit wait until the end of the block, and yield a connection that only reads."""
    async with connected(database.url) as looking:
        await looking.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        await looking.execute("SELECT pg_reload_conf()")
        try:
            async with _waiting_commit(database, looking):
                yield looking
        finally:
            await looking.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await looking.execute("SELECT pg_reload_conf()")


@asynccontextmanager
async def _waiting_commit(database: Database, looking: "asyncpg.Connection[asyncpg.Record]") -> AsyncIterator[None]:
    """Wait until the server applies the new settings, which takes a moment."""
    probe = await asyncpg.connect(database.url)
    pid = probe.get_server_pid()
    asked: asyncio.Task[str] | None = None

    async def waits() -> bool:
        nonlocal asked
        if asked is None or asked.done():
            asked = asyncio.create_task(probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')"))
            await asyncio.sleep(0.05)
        event = await looking.fetchval("SELECT wait_event FROM pg_stat_activity WHERE pid = $1", pid)
        return event == "SyncRep" and not asked.done()

    try:
        await until(waits, "a commit waits for the standby")
        yield
    finally:
        probe.terminate()
        if asked is not None:
            with suppress(Exception):
                await asked


@pytest.mark.parametrize("given_up", ["by the command's time limit", "by the caller"])
async def test_giving_up_on_a_commit_that_waits_for_the_standby_does_not_make_it_visible(
    given_up: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "COMMAND_SECONDS", SECOND if given_up == "by the command's time limit" else 60.0)
    async with Holdfast(database.url) as app:
        async with without_standby(database) as looking:
            with pytest.raises(StoreUnavailable if given_up == "by the command's time limit" else TimeoutError):
                async with asyncio.timeout(SECOND if given_up == "by the caller" else None):
                    await app.enqueue("work", key="once")
            assert await looking.fetchval(_WAITING) == 1, "the server goes on waiting"
            assert await looking.fetchval(_JOBS) == 0, "and nobody sees what it has not committed"

        async def is_committed() -> bool:
            return (await app.jobs.count())["ready"] == 1  # type: ignore[index]

        await until(is_committed, "the standby is there again")
        assert (await app.enqueue("work", key="once")).is_new is False


async def test_enqueueing_never_returns_a_job_that_no_standby_has(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "COMMAND_SECONDS", SECOND)
    async with Holdfast(database.url) as first, Holdfast(database.url) as second:
        async with without_standby(database):
            for producer in (first, second):
                with pytest.raises(StoreUnavailable):
                    await producer.enqueue("work", key="once")
        told: list[Enqueued] = []

        async def is_told() -> bool:
            told.append(await second.enqueue("work", key="once"))
            return not told[-1].is_new

        await until(is_told, "the standby is there again")
        assert sum((await second.jobs.count()).values()) == 1
