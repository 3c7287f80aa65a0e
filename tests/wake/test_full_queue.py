"""A wake-up is only a hint: if PostgreSQL cannot take notifications, transactions still commit."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import PLAIN_SUCCESS
from holdfast.store.contract import Fenced, Finish
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.postgres.waiters import PostgresWaiters
from tests.databases import Database, DatabaseMaker, connected, no_task_left, opened_store
from tests.postgres.roles import role_of
from tests.store_contract.steps import ENDINGS, LEASE, job, wants
from tests.wake.ear import fall_asleep

MINUTE = timedelta(minutes=1)
Enqueue = Callable[[Holdfast, "asyncpg.Connection[asyncpg.Record]"], Awaitable[object]]


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseMaker]:
    """The smallest notification queue that PostgreSQL allows: half a megabyte instead of eight gigabytes."""
    address = EmbeddedAddress(tmp_path_factory.mktemp("small") / "postgres", 18, durable=False)
    with EmbeddedServer.start(address) as server, psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET max_notify_queue_pages = 64")
    with EmbeddedServer.start(address) as server:
        maker = DatabaseMaker(server)
        yield maker
        maker.close()


@pytest.fixture
async def small(small_server: DatabaseMaker) -> AsyncIterator[Database]:
    with small_server.emptied_database() as database:
        async with no_task_left():
            yield database


@asynccontextmanager
async def full_queue(url: str) -> AsyncIterator[None]:
    """A listener in an open transaction keeps notifications in the queue until no notifying transaction can commit."""
    async with connected(url) as listener, connected(url) as other:
        await listener.execute("LISTEN anything")
        await listener.execute("BEGIN")
        with suppress(asyncpg.ProgramLimitExceededError):
            for number in range(1000):
                await other.execute("SELECT pg_notify('anything', $1)", f"{number:07000}")
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many notifications"):
            await other.execute("NOTIFY anything")
        yield


@asynccontextmanager
async def asleep(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A sleeping worker is registered on the queue and wants to be notified."""
    async with connected(url) as connection:
        await fall_asleep(connection, uuid4(), ["default"])
        yield connection


async def one(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await app.enqueue("work", {})


async def many(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await app.enqueue_many([app.job("work", {}) for _ in range(10)])


async def by_copy(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await app.enqueue_many([app.job("work", {}) for _ in range(3000)])


async def with_a_key(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await app.enqueue("work", {}, key="a")


async def by_sql(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await connection.execute("SELECT holdfast.enqueue('work', '{}')")


async def in_a_transaction(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    async with connection.transaction():
        await app.enqueue("work", {}, conn=connection)


async def as_an_event(app: Holdfast, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await app.subscriptions.save("work", "invoice.*")
    await app.publish("invoice.paid", {})


WAYS: list[Enqueue] = [one, many, by_copy, with_a_key, by_sql, in_a_transaction, as_an_event]


@pytest.mark.parametrize("enqueue", WAYS, ids=lambda way: way.__name__)
async def test_jobs_are_enqueued_while_the_notification_queue_is_full(small: Database, enqueue: Enqueue) -> None:
    async with Holdfast(small.url) as app, asleep(small.url) as connection:
        async with full_queue(small.url):
            await enqueue(app, connection)
        assert (await app.jobs.count())[JobState.READY] > 0


@pytest.mark.parametrize("enqueue", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_jobs_are_enqueued_by_a_role_that_may_not_notify(database: Database, enqueue: Enqueue) -> None:
    with role_of(database.url) as role:
        async with asleep(database.url) as owner:
            await owner.execute("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC")
            try:
                async with Holdfast(role.url) as app, connected(role.url) as connection:
                    await enqueue(app, connection)
                    assert (await app.jobs.count())[JobState.READY] > 0
            finally:
                await owner.execute("GRANT EXECUTE ON FUNCTION pg_notify(text, text) TO PUBLIC")


async def waited_for(store: PostgresStore, kind: str) -> Finish:
    """A running job with a registered waiter."""
    await store.enqueue([job(kind=kind)])
    (leased,) = await store.claim(wants(kind))
    await PostgresWaiters(store).register(uuid4(), {leased.lease.id: MINUTE})
    return Finish(leased.lease, ENDINGS["succeed"])


async def test_jobs_end_while_the_notification_queue_is_full(small: Database) -> None:
    async with opened_store(small.url) as store, asleep(small.url) as connection, full_queue(small.url):
        for name, ending in ENDINGS.items():
            finish = await waited_for(store, name)
            assert await store.finish([finish._replace(transition=ending)]) == [Fenced.DONE]
        plain = await waited_for(store, "plain")
        assert await store.finish([plain._replace(transition=PLAIN_SUCCESS)]) == [Fenced.DONE]
        in_transaction = await waited_for(store, "in a transaction")
        async with connection.transaction():
            await store.finish_in.statement(in_transaction.lease, None).execute_on(connection)
        canceled = await waited_for(store, "canceled")
        assert await store.cancel([canceled.lease.id]) == ["requested"]
        await PostgresClock(store).advance(LEASE)
        assert [each.state for each in await store.rescue(10)] == [JobState.CANCELED]
        released = await waited_for(store, "released")
        assert await store.release([released.lease]) == [Fenced.DONE]
        assert await store.cancel([released.lease.id]) == ["canceled"]
        assert await store.retry([released.lease.id]) == ["ready"]
