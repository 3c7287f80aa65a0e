"""Every statement of the engine runs at read committed, whatever the role's default is, also behind a pooler."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.job import Lease
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.postgres.store import PostgresStore
from tests.bouncers import bounced, needs_pgbouncer
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import ENDINGS, LEASE, job, wants
from tests.worker.harness import drained, fast, working

LEVELS = ("repeatable read", "serializable")

pytestmark = [
    pytest.mark.parametrize("server", ["embedded-18"], indirect=True),
    pytest.mark.parametrize("level", LEVELS),
]


@asynccontextmanager
async def default_of_the_role(database: Database, level: str) -> AsyncIterator[None]:
    async with connected(database.url) as owner:
        role = f'ALTER ROLE postgres IN DATABASE "{database.name}"'
        await owner.execute(f"{role} SET default_transaction_isolation = '{level}'")
        try:
            yield
        finally:
            await owner.execute(f"{role} RESET default_transaction_isolation")


async def waits_for_a_lock(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = $1)"
    name = await connection.fetchval("SELECT current_database()")
    async with asyncio.timeout(30):
        while not await connection.fetchval(waiting, name):  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.005)


async def renewed_meanwhile(store: PostgresStore, lease: Lease) -> None:
    """Renew a lease while it is being ended: neither may fail because of the other."""
    async with store.renewer() as renewer:
        (renewed,) = await renewer.renew([Renewal(lease, 2 * LEASE)])
    assert renewed.fenced is Fenced.DONE


async def meets_another_transaction(store: PostgresStore, database: Database) -> None:
    """With a snapshot for the whole statement, both would fail with a serialization error."""
    async with connected(database.url) as other:
        async with other.transaction(isolation="read_committed"):
            await other.execute("SELECT holdfast.enqueue('work', '{}', key => 'a')")
            enqueuing = asyncio.create_task(store.enqueue([job(key="a")]))
            await waits_for_a_lock(other)
        (enqueued,) = await enqueuing
        assert not enqueued.is_new
        (leased,) = await store.claim(wants())
        await renewed_meanwhile(store, leased.lease)
        async with other.transaction(isolation="read_committed"):
            await other.execute("UPDATE holdfast.lease SET until = until + interval '1 second'")
            finishing = asyncio.create_task(store.finish([Finish(leased.lease, ENDINGS["succeed"])]))
            assert await finishing == [Fenced.LOCKED]
        assert await store.finish([Finish(leased.lease, ENDINGS["succeed"])]) == [Fenced.DONE]


async def test_conflicting_statements_do_not_fail(database: Database, level: str) -> None:
    async with default_of_the_role(database, level), opened_store(database.url) as store:
        async with store.acquired() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
        await meets_another_transaction(store, database)


@needs_pgbouncer
@pytest.mark.parametrize("said", ["", "?pgbouncer=1"])
async def test_conflicting_statements_do_not_fail_behind_a_pooler_that_rejects_settings(
    database: Database, level: str, said: str, tmp_path: Path
) -> None:
    with bounced(database.url, tmp_path) as bouncer:
        async with default_of_the_role(database, level), opened_store(f"{bouncer.url}{said}") as store:
            rows = await store.fetch_by_index("backlog", 1)
            assert rows == []
            await meets_another_transaction(store, database)
            async with connected(database.url) as other:
                # No setting is left in the connections that the pooler shares with other clients.
                assert await other.fetchval("SHOW default_transaction_isolation") == level


async def test_workers_share_a_queue_without_errors(
    database: Database, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with default_of_the_role(database, level):
        apps = [Holdfast(database.url) for _ in range(2)]
        ran: list[object] = []

        async def work(job: RunningJob[dict[str, int]]) -> None:
            ran.append(job.id)

        for app in apps:
            app.handler("work")(work)
        one, two = apps
        async with one, two, working(one, fast(lease=timedelta(seconds=3))), working(two, fast()):
            for _ in range(20):
                await asyncio.gather(*(app.enqueue_many([app.job("work", {}) for _ in range(10)]) for app in apps))
            assert await drained(one) == {JobState.SUCCEEDED: 400}
    assert len(ran) == len(set(ran)) == 400
    assert "trying again" not in caplog.text
