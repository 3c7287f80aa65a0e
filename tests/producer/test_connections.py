"""Unusual connections, objects that are not connections, and the errors for them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.db import connection as django_connection
from django.db import connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper as DjangoSqlite
from sqlalchemy.ext.asyncio import AsyncSession

from holdfast import Enqueued, Holdfast, InvalidInput, JobState, RunningJob, Statement
from holdfast.store.contract import JobFilter
from tests.databases import connected
from tests.producer.conftest import Shop
from tests.producer.connection_kinds import KINDS, READ_COMMITTED, settled, verbs
from tests.producer.orm_kinds import async_engine, django_databases, engine
from tests.wake.ear import listening

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.mark.parametrize("kind", ["asyncpg_connection", "psycopg_connection", "psycopg2_connection", "django_cursor"])
async def test_one_call_enqueues_ten_thousand_jobs(shop: Shop, kind: str) -> None:
    jobs = [shop.app.job("ship", {"order": number}) for number in range(10_000)]
    async with KINDS[kind](shop.url, READ_COMMITTED) as link:
        answers = await settled(verbs(shop.app, link.connection).enqueue_many(jobs, conn=link.connection))
        assert answers == [Enqueued(job.id, is_new=True) for job in jobs]
    assert shop.jobs() == [job.id for job in jobs]


def test_autocommit_commits_at_once_and_a_bulk_is_still_all_or_none(shop: Shop) -> None:
    app = shop.app
    with psycopg.connect(shop.url, autocommit=True) as connection:
        first = app.sync.enqueue("ship", conn=connection)
        assert shop.jobs() == [first.id]
        with pytest.raises(psycopg.errors.UniqueViolation):
            app.sync.enqueue_many([app.job("ship"), app.job("ship", id=first.id)], conn=connection)
    assert shop.jobs() == [first.id]


def test_an_app_that_was_never_opened_enqueues_without_an_event_loop(shop: Shop) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    with psycopg.connect(shop.url) as connection:
        enqueued = shop.app.sync.enqueue("ship", {"order": 1}, conn=connection)
    assert shop.jobs() == [enqueued.id]


async def test_a_job_due_in_more_than_a_minute_sends_no_notification(shop: Shop) -> None:
    """A transaction that sent a notification could not be prepared for a two-phase commit."""
    async with listening(shop.url) as ear:
        for queue in ("late", "soon"):
            await ear.asleep(queue)
        for delay, queue in (("61s", "late"), ("60s", "soon")):
            with psycopg.connect(shop.url) as connection:
                shop.app.sync.enqueue("ship", conn=connection, delay=delay, queue=queue)
                shop.app.sync.enqueue_many([shop.app.job("ship", delay=delay, queue=queue)], conn=connection)
        assert await ear.heard() == ["soon"]


@asynccontextmanager
async def _psycopg_cursor(shop: Shop) -> AsyncIterator[Any]:
    with psycopg.connect(shop.url) as connection, connection.cursor() as cursor:
        yield cursor


@asynccontextmanager
async def _psycopg_named_cursor(shop: Shop) -> AsyncIterator[Any]:
    with psycopg.connect(shop.url) as connection, connection.cursor("reading") as cursor:
        yield cursor


@asynccontextmanager
async def _psycopg2_cursor(shop: Shop) -> AsyncIterator[Any]:
    connection = psycopg2.connect(shop.url)
    with connection, connection.cursor() as cursor:
        yield cursor
    connection.close()


@asynccontextmanager
async def _psycopg2_named_cursor(shop: Shop) -> AsyncIterator[Any]:
    connection = psycopg2.connect(shop.url)
    with connection, connection.cursor("reading") as cursor:
        yield cursor
    connection.close()


@asynccontextmanager
async def _django_cursor(shop: Shop) -> AsyncIterator[Any]:
    with django_databases(shop.url, READ_COMMITTED), transaction.atomic(), django_connection.cursor() as cursor:
        yield cursor


@pytest.mark.parametrize(
    "opened", [_psycopg_cursor, _psycopg_named_cursor, _psycopg2_cursor, _psycopg2_named_cursor, _django_cursor]
)
async def test_enqueueing_keeps_the_unread_rows_of_a_cursor(shop: Shop, opened: Callable[[Shop], Any]) -> None:
    async with opened(shop) as cursor:
        cursor.execute("SELECT generate_series(1, 3)")
        assert tuple(cursor.fetchone()) == (1,)
        enqueued = shop.app.sync.enqueue("ship", conn=cursor)
        assert [tuple(row) for row in cursor.fetchall()] == [(2,), (3,)]
    assert shop.jobs() == [enqueued.id]


def test_a_psycopg_connection_may_use_another_parameter_style(shop: Shop) -> None:
    with psycopg.connect(shop.url, cursor_factory=psycopg.RawCursor) as connection:
        enqueued = shop.app.sync.enqueue("ship", {"a": "100%"}, conn=connection)
    assert shop.jobs() == [enqueued.id]


def test_enqueueing_waits_for_a_psycopg_pipeline(shop: Shop) -> None:
    with psycopg.connect(shop.url) as connection, connection.pipeline():
        enqueued = shop.app.sync.enqueue("ship", conn=connection)
    assert shop.jobs() == [enqueued.id]


def test_a_sqlalchemy_connection_that_streams_results_can_enqueue(shop: Shop) -> None:
    with engine("psycopg2", shop.url, READ_COMMITTED).connect() as connection:
        connection.execution_options(stream_results=True)
        many = shop.app.sync.enqueue_many([shop.app.job("ship")], conn=connection)
        one = shop.app.sync.enqueue("ship", conn=connection)
        connection.commit()
    assert shop.jobs() == [many[0].id, one.id]


class Traced:
    """Pretends to be the object it wraps, like the proxies of tracing libraries."""

    def __init__(self, wrapped: object) -> None:
        self.wrapped = wrapped

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.wrapped.__class__

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.wrapped, name)


@pytest.mark.parametrize("kind", ["asyncpg_connection", "psycopg_connection", "psycopg2_connection"])
async def test_a_connection_may_be_wrapped_by_a_tracing_library(shop: Shop, kind: str) -> None:
    async with KINDS[kind](shop.url, READ_COMMITTED) as link:
        traced: Any = Traced(link.connection)
        enqueued = await settled(verbs(shop.app, traced).enqueue("ship", conn=traced))
    assert shop.jobs() == [enqueued.id]


@pytest.mark.parametrize("kind", ["asyncpg_connection", "psycopg_connection", "psycopg2_connection", "django_cursor"])
async def test_a_statement_may_contain_a_percent_sign_and_parameters_in_any_order(shop: Shop, kind: str) -> None:
    statement = Statement("SELECT 7 % 4, $2::text, $1::text, $2::text", ("%s", "$1"), list)
    async with KINDS[kind](shop.url, READ_COMMITTED) as link:
        rows = await settled(statement.execute_on(link.connection))
    assert [tuple(row) for row in rows] == [(3, "$1", "%s", "$1")]


async def test_the_statement_can_be_executed_by_hand(shop: Shop) -> None:
    job = shop.app.job("ship", {"order": 1}, key="order-1")
    statement = shop.app.statement(job)
    assert "$1::text" in statement.sql
    async with connected(shop.url) as connection:
        for is_new in (True, False):
            rows = await connection.fetch(statement.sql, *statement.parameters)
            assert statement.read(rows) == [Enqueued(job.id, is_new=is_new)]
    assert shop.jobs() == [job.id]


async def test_an_object_that_is_not_a_connection_is_refused_with_the_remedy(shop: Shop) -> None:
    refused: list[tuple[Any, str]] = [
        (object(), "^builtins.object is not a supported connection; pass one from asyncpg"),
        (sqlite3.connect(":memory:"), "^sqlite3.Connection is not a supported connection"),
        (engine("psycopg", shop.url, READ_COMMITTED), "^the Engine of sqlalchemy does not hold your transaction; pass"),
        (DjangoSqlite({"NAME": ":memory:"}), "^the connection is to sqlite; pass one to the PostgreSQL"),
    ]
    async with asyncpg.create_pool(shop.url, min_size=1, max_size=1) as pool:
        refused.append(
            (pool, "^the Pool of asyncpg does not hold your transaction; pass the connection, session or cursor")
        )
        with sqlalchemy.create_engine("sqlite://").connect() as sqlite:
            refused.append((sqlite, "^the connection is to sqlite; pass one to the PostgreSQL"))
            for connection, said in refused:
                with pytest.raises(InvalidInput, match=said):
                    shop.app.sync.enqueue("ship", conn=connection)
    refused[1][0].close()
    assert shop.jobs() == []


def test_a_job_that_is_already_built_takes_no_more_options(shop: Shop) -> None:
    job = shop.app.job("ship")
    options: list[dict[str, Any]] = [{"payload": 1}, {"key": "a"}]
    for arguments in options:
        with pytest.raises(InvalidInput, match=r"already has its payload and options; give those to app.job\(…\)"):
            shop.app.sync.enqueue(job, conn=shop.looking, **arguments)


def test_an_app_in_memory_cannot_join_a_transaction(shop: Shop) -> None:
    app = Holdfast("memory:")
    said = "jobs in memory have no transaction; use a PostgreSQL store"
    with pytest.raises(InvalidInput, match=said):
        app.sync.enqueue("ship", conn=shop.looking)
    with pytest.raises(InvalidInput, match=said):
        app.sync.enqueue_many([], conn=shop.looking)
    with pytest.raises(InvalidInput, match=said):
        app.statement(app.job("ship"))


async def test_handlers_can_finish_in_a_session_or_a_connection(shop: Shop) -> None:
    app = Holdfast(shop.url)

    @app.handler("session")
    async def in_session(job: RunningJob[int]) -> None:
        async with AsyncSession(async_engine("asyncpg", shop.url, READ_COMMITTED)) as session, session.begin():
            await session.execute(sqlalchemy.text("INSERT INTO orders (number) VALUES (1)"))
            await app.enqueue("child", conn=session)
            await job.finish_in(session, {"by": "session"})

    @app.handler("django")
    def in_django(job: RunningJob[int]) -> None:
        with transaction.atomic():
            with django_connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders (number) VALUES (2)")
            app.sync.enqueue("child", conn=django_connection)
            job.finish_in(django_connection, {"by": "django"})
        connections.close_all()

    with django_databases(shop.url, READ_COMMITTED):
        async with app:
            ids = [(await app.enqueue(kind, 0)).id for kind in ("session", "django")]
            assert (await app.tick(runners=["queue"])).is_fine
            jobs = [await app.jobs.get(id) for id in ids]
            children = await app.jobs.list(JobFilter(kind="child"), 10)
    assert [(job.state, job.result) for job in jobs if job is not None] == [
        (JobState.SUCCEEDED, {"by": "session"}),
        (JobState.SUCCEEDED, {"by": "django"}),
    ]
    assert shop.orders() == [1, 2]
    assert sorted(child.correlation_id for child in children) == sorted(map(str, ids))
