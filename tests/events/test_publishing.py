"""Publishing on PostgreSQL: in the caller's transaction, in plain SQL, and from a process without handlers."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Holdfast, InvalidInput, JobState, Published, RunningJob
from holdfast.domain.event import NewEvent
from holdfast.domain.json_text import Json, encode
from holdfast.store.contract import JobFilter
from holdfast.store.events import NewSubscription
from holdfast.store.opening import migrate
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import statement
from tests.databases import Database, connected, opened_store
from tests.wake.ear import listening as hearing
from tests.worker.harness import drained, until, working

pytestmark = [pytest.mark.postgres, pytest.mark.parametrize("server", ["embedded-18"], indirect=True)]

TWO = [NewSubscription("book", "invoice.*"), NewSubscription("receipt", "invoice.paid")]


def app_on(database: Database) -> Holdfast:
    """Return a producer without subscribers."""
    return Holdfast(database.url)


@asynccontextmanager
async def listening(database: Database) -> AsyncIterator[Holdfast]:
    """Add two subscriptions to the store, and a table of the application."""
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE invoice (number integer)")
    async with app_on(database) as app:
        await app.opened.events.declare(TWO)
        yield app


async def kinds(app: Holdfast) -> list[str]:
    return sorted(job.kind for job in await app.jobs.list(JobFilter(), 100))


async def committed(app: Holdfast, database: Database, published: Published) -> None:
    """The row and the jobs have been committed."""
    assert await kinds(app) == ["book", "receipt"]
    assert [job.subscription for job in published.jobs] == ["book", "receipt"]
    for made in published.jobs:
        job = await app.jobs.get(made.id)
        assert job is not None
        headers: Any = job.as_dict()["headers"]
        assert headers["holdfast.event"]["id"] == str(published.event_id)
    async with connected(database.url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM invoice") == 1


async def rolled_back(app: Holdfast, database: Database) -> None:
    assert await kinds(app) == []
    async with connected(database.url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM invoice") == 0


async def test_jobs_commit_and_roll_back_with_an_asyncpg_transaction(database: Database) -> None:
    async with listening(database) as app, connected(database.url) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO invoice VALUES (17)")
        assert len((await app.publish("invoice.paid", {"number": 17}, conn=connection)).jobs) == 2
        await transaction.rollback()
        await rolled_back(app, database)
        async with connection.transaction():
            await connection.execute("INSERT INTO invoice VALUES (17)")
            published = await app.publish("invoice.paid", {"number": 17}, conn=connection)
            assert await kinds(app) == []
        await committed(app, database, published)


async def test_jobs_commit_and_roll_back_with_a_psycopg_transaction(database: Database) -> None:
    async with listening(database) as app:
        with psycopg.connect(database.url, row_factory=dict_row) as connection:
            connection.execute("INSERT INTO invoice VALUES (17)")
            assert len(app.sync.publish("invoice.paid", {"rate": "100%"}, conn=connection).jobs) == 2
            connection.rollback()
            await rolled_back(app, database)
            connection.execute("INSERT INTO invoice VALUES (17)")
            published = app.sync.publish("invoice.paid", {"rate": "100%"}, conn=connection)
        await committed(app, database, published)


async def test_jobs_commit_and_roll_back_with_an_async_psycopg_transaction(database: Database) -> None:
    async with listening(database) as app:
        async with await psycopg.AsyncConnection.connect(database.url) as connection:
            await connection.execute("INSERT INTO invoice VALUES (17)")
            await app.publish("invoice.paid", conn=connection)
            await connection.rollback()
            await rolled_back(app, database)
            await connection.execute("INSERT INTO invoice VALUES (17)")
            published = await app.publish("invoice.paid", conn=connection)
        await committed(app, database, published)


async def test_an_unsupported_connection_is_refused(database: Database) -> None:
    no_connection: Any = object()
    with pytest.raises(InvalidInput, match="not a supported connection"):
        await app_on(database).publish("invoice.paid", conn=no_connection)


async def test_plain_sql_publishes(database: Database) -> None:
    async with listening(database) as app, connected(database.url) as connection:
        rows = await connection.fetch("SELECT * FROM holdfast.publish('invoice.paid', '{\"number\": 17}')")
        assert [(row["subscription"], row["is_new"]) for row in rows] == [("book", True), ("receipt", True)]
        jobs = [await app.jobs.get(row["id"]) for row in rows]
        headers: list[Any] = [job.as_dict()["headers"] for job in jobs if job is not None]
        (event_id,) = {each["holdfast.event"]["id"] for each in headers}
        assert UUID(event_id).version == 7
        assert {job.correlation_id for job in jobs if job is not None} == {event_id}
        assert await connection.fetch("SELECT * FROM holdfast.publish('order.paid', '{}')") == []


REFUSED = {
    "NULL, '{}'": "event_type: ",
    "'', '{}'": "event_type: ",
    "'a.*', '{}'": "event_type: ",
    "'a..b', '{}'": "event_type: ",
    "repeat('é', 128), '{}'": "event_type: ",
    "'a', NULL": "payload: ",
    "'a', '{}', headers => '[]'": "headers: ",
    "'a', '{}', headers => json_build_object('h', repeat('x', 17000))": "headers: ",
    "'a', '{}', key => ''": "key",
    "'a', '{}', tenant => repeat('x', 201)": "key, tenant",
}


async def test_plain_sql_is_refused_with_a_helpful_line_even_without_subscribers(database: Database) -> None:
    async with connected(database.url) as connection:
        for arguments, line in REFUSED.items():
            with pytest.raises(asyncpg.PostgresError) as refused:
                await connection.execute(f"SELECT * FROM holdfast.publish({arguments})")
            assert (refused.value.sqlstate, str(refused.value)[: len(line)]) == ("HF002", line), arguments


async def test_a_row_that_would_make_every_publish_fail_cannot_be_stored(database: Database) -> None:
    async with connected(database.url) as connection:
        for values in (
            "'a', 'a*', 'default', 5",
            "'a', '*', '', 5",
            "'a', '*', 'default', 10",
            "'', '*', 'default', 5",
        ):
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute(
                    f"INSERT INTO holdfast.subscription (name, pattern, queue, priority, created_at, updated_at) "
                    f"VALUES ({values}, now(), now())"
                )


async def test_events_work_in_a_schema_with_another_name(database: Database) -> None:
    await migrate(database.url, "My events")
    async with opened_store(database.url, schema="My events") as store:
        events = PostgresEvents(store)
        await events.declare(TWO)
        await events.declare([NewSubscription("receipt", "*")])
        assert len(await events.publish(NewEvent(type="invoice.paid", payload=Json("{}"), key="k"))) == 2
        (job,) = await PostgresReader(store).list(JobFilter(), 1)
        assert list(job.headers) == ["holdfast.event"]
        assert [each.pattern for each in await events.list()] == ["invoice.*", "*"]
        assert await events.remove("book")


async def test_subscriptions_are_found_by_an_index_however_many_there_are(database: Database) -> None:
    async with connected(database.url) as connection:
        await connection.execute("VACUUM (ANALYZE) holdfast.subscription")
        # Plan while there are no subscriptions.
        for _ in range(8):
            await connection.execute("SELECT * FROM holdfast.publish('invoice.paid.late', '{}')")
        await connection.execute(
            "INSERT INTO holdfast.subscription (name, pattern, queue, priority, created_at, updated_at) "
            "SELECT 's' || i, 'other.t' || i, 'default', 5, now(), now() FROM generate_series(1, 3000) AS i"
        )
        read = "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'subscription'"
        async with connection.transaction():
            await connection.execute("SELECT * FROM holdfast.publish('other.t7', '{}')")
            counts = await connection.fetchrow(read)
        assert counts is not None
        assert counts["seq_tup_read"] == 0
        assert counts["idx_tup_fetch"] <= 1


async def test_many_jobs_of_one_event_send_one_notification(database: Database) -> None:
    async with hearing(database.url) as ear, app_on(database) as app:
        await app.opened.events.declare([NewSubscription(f"s{number}", "*") for number in range(20)])
        await ear.asleep("default")
        assert len((await app.publish("invoice.paid")).jobs) == 20
        assert await ear.heard() == ["default"]


async def test_concurrent_publishers_with_one_key_make_each_job_once(database: Database) -> None:
    async with app_on(database) as app:
        await app.opened.events.declare(TWO)
        for number in range(10):
            made = await asyncio.gather(*(app.publish("invoice.paid", key=f"k{number}") for _ in range(6)))
            assert len({job.id for published in made for job in published.jobs}) == 2
            assert sum(len(published.new_ids) for published in made) == 2
        assert (await app.jobs.count())[JobState.READY] == 20


async def test_publish_and_enqueue_many_lock_their_keys_in_the_same_order(database: Database) -> None:
    names = ["A", "_", "b", "c", "é"]
    async with app_on(database) as app, connected(database.url) as first, connected(database.url) as admin:
        await app.opened.events.declare([NewSubscription(name, "*") for name in names])
        # From now on, A comes last in every query without an ORDER BY.
        await app.opened.events.remove("A")
        await app.opened.events.declare([NewSubscription("A", "*")])
        transaction = first.transaction()
        await transaction.start()
        await first.execute("SELECT holdfast.enqueue('c', '{}', key => 'k')")
        publishing = asyncio.create_task(app.publish("invoice.paid", key="k"))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

        async def wait(count: int) -> bool:
            return bool(await admin.fetchval(waiting) == count)

        await until(lambda: wait(1), "one waits for the first holder of a key")
        enqueuing = asyncio.create_task(app.enqueue_many([app.job(name, key="k") for name in names]))
        await until(lambda: wait(2), "both wait")
        await transaction.rollback()
        published, enqueued = await publishing, await enqueuing
        assert {job.id for job in published.jobs} == {job.id for job in enqueued}


async def test_a_transaction_with_an_older_snapshot_does_not_see_a_newer_subscription(database: Database) -> None:
    async with app_on(database) as app, connected(database.url) as connection:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("SELECT 1 FROM holdfast.subscription")
            await app.opened.events.declare(TWO)
            assert (await app.publish("invoice.paid", conn=connection)).jobs == ()
        assert len((await app.publish("invoice.paid", conn=connection)).jobs) == 2


async def test_mistakes_of_the_caller_are_reported_as_such(database: Database) -> None:
    async with opened_store(database.url) as store:
        await PostgresEvents(store).declare([NewSubscription("ü" * 200, "*")])
        event = NewEvent(type="a", payload=encode({}), key="é" * 500, tenant="é" * 200, headers=Json("[]"))
        with pytest.raises(InvalidInput, match="headers: "):
            await PostgresEvents(store).publish(event)


async def test_a_worker_declares_its_subscriptions_only_when_it_starts(database: Database) -> None:
    app = app_on(database)

    @app.on("invoice.paid")
    async def receipt(job: RunningJob[Any]) -> None: ...

    async with app:
        assert await app.subscriptions.list() == []
        async with working(app):
            await until(app.subscriptions.list, "the subscription is in the store")
            # A newer release declares another pattern, and this worker continues without declaring its own again.
            await app.opened.events.declare([NewSubscription("receipt", "invoice.*")])
            await app.publish("invoice.sent")
            assert await drained(app) == {JobState.SUCCEEDED: 1}
        assert [each.pattern for each in await app.subscriptions.list()] == ["invoice.*"]
        assert (await app.tick(runners=["queue"])).is_fine
        assert [each.pattern for each in await app.subscriptions.list()] == ["invoice.paid"]


async def test_a_worker_that_starts_during_an_outage_declares_when_the_store_is_back(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(database)

    @app.on("invoice.paid")
    async def receipt(job: RunningJob[Any]) -> None: ...

    async with app, connected(database.url) as connection:
        await connection.execute("ALTER TABLE holdfast.subscription RENAME TO gone")
        async with working(app):
            await until(lambda: "runner failed, trying again" in caplog.text, "a try that failed")
            await connection.execute("ALTER TABLE holdfast.gone RENAME TO subscription")
            await until(app.subscriptions.list, "the subscription is in the store")


async def test_a_deploy_script_declares_schedules_and_subscriptions(database: Database) -> None:
    app = app_on(database)

    @app.on("invoice.paid")
    async def receipt(job: RunningJob[Any]) -> None: ...

    @app.schedule("hourly")
    async def hourly(job: RunningJob[Any]) -> None: ...

    async with app:
        await app.declare()
        await app.declare()
        assert [each.name for each in await app.subscriptions.list()] == ["receipt"]
        assert [each.name for each in await app.schedules.list()] == ["hourly"]


PRODUCER = """
import asyncio, json, sys
from holdfast import Holdfast

async def main():
    async with Holdfast(sys.argv[1]) as app:
        published = await app.publish("invoice.paid", {"number": 17}, key="17")
        print(json.dumps([len(app.handlers), [job.subscription for job in published.jobs]]))

asyncio.run(main())
"""


async def test_a_process_without_handlers_publishes_to_handlers_of_another(database: Database) -> None:
    app, done = app_on(database), []

    @app.on("invoice.*")
    async def book(job: RunningJob[dict[str, int]]) -> None:
        done.append(job.payload["number"])

    async with app:
        await app.declare()
        async with working(app):
            command = [sys.executable, "-c", PRODUCER, database.url]
            ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
            assert json.loads(ended.stdout) == [0, ["book"]]
            assert await drained(app) == {JobState.SUCCEEDED: 1}
    assert done == [17]


def test_the_statement_has_each_parameter_once_and_in_order(server: object) -> None:
    """Drivers without numbered parameters fill them in one after the other."""
    sql = statement("publish", "holdfast")
    assert [part[0] for part in sql.split("$")[1:]] == list("1234567")
