"""A mistaken call is refused in one line that says what to do, and never reaches the database."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from holdfast import Holdfast, InvalidInput, RunningJob
from tests.databases import connected
from tests.producer.conftest import Shop
from tests.producer.connection_kinds import READ_COMMITTED
from tests.producer.orm_kinds import async_engine, engine

# Any, because the tests pass wrong types.
APP: Any = Holdfast("postgresql://nobody@nowhere/nothing")
CONNECTION = object()
JOB = APP.job("ship")

A_KIND = "give its name, a Kind, or a job built by app.job(…)"
JOBS = "build each with app.job(kind, payload)"
ID = "pass a uuid.UUID"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: APP.sync.enqueue(None, conn=CONNECTION), f"kind: None is not a kind; {A_KIND}"),
        (lambda: APP.sync.enqueue(5, conn=CONNECTION), f"kind: 5 is not a kind; {A_KIND}"),
        (lambda: APP.sync.enqueue({"order": 1}, conn=CONNECTION), f"kind: {{'order': 1}} is not a kind; {A_KIND}"),
        (lambda: APP.sync.enqueue("", conn=CONNECTION), "kind: is empty; give it at least one character"),
        (lambda: APP.sync.enqueue("ship", conn=CONNECTION, id="abc"), f"id: 'abc' is not a UUID; {ID}"),
        (lambda: APP.statement("ship"), f"jobs: 'ship' is not a job; {JOBS}"),
        (lambda: APP.sync.enqueue_many(["ship"], conn=CONNECTION), f"jobs: 'ship' is not a job; {JOBS}"),
        (
            lambda: APP.sync.enqueue_many([JOB, ("ship", {})], conn=CONNECTION),
            f"jobs: ('ship', {{}}) is not a job; {JOBS}",
        ),
        (
            lambda: APP.sync.enqueue_many([{"kind": "ship"}], conn=CONNECTION),
            f"jobs: {{'kind': 'ship'}} is not a job; {JOBS}",
        ),
        (
            lambda: APP.sync.enqueue_many(JOB, conn=CONNECTION),
            "jobs: this is one job; give it to enqueue, or give a list",
        ),
        (lambda: APP.sync.enqueue_many("ship", conn=CONNECTION), f"jobs: 'ship' is not a list of jobs; {JOBS}"),
        (lambda: APP.sync.enqueue_many(None, conn=CONNECTION), f"jobs: None is not a list of jobs; {JOBS}"),
        (lambda: APP.sync.publish(5, conn=CONNECTION), "event type: 5 is not text"),
        (lambda: APP.sync.publish("invoice.paid", conn=CONNECTION, id="abc"), f"id: 'abc' is not a UUID; {ID}"),
    ],
)
def test_wrong_arguments_are_reported_before_the_connection_is_checked(call: Callable[[], object], line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()
    assert str(refused.value) == line


async def test_an_error_line_does_not_grow_with_the_argument() -> None:
    with pytest.raises(InvalidInput) as refused:
        APP.sync.enqueue({"order": "x" * 1000}, conn=CONNECTION)
    assert len(str(refused.value)) < 200


async def test_enqueueing_many_on_the_stores_connection_reports_the_same_mistakes() -> None:
    app: Any = Holdfast("memory:")
    async with app:
        for wrong, line in {"ship": "is not a list of jobs", ("ship",): "is not a job", JOB: "this is one job"}.items():
            with pytest.raises(InvalidInput, match=line):
                await app.enqueue_many(wrong)


KNOWN = "builtins.object is not a supported connection; pass one from asyncpg, psycopg, SQLAlchemy or Django"


@pytest.mark.parametrize(
    "call",
    [lambda: APP.sync.enqueue("ship", conn=CONNECTION), lambda: APP.sync.enqueue_many([JOB], conn=CONNECTION)],
)
def test_for_an_unsupported_library_the_error_offers_the_statement(call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()
    assert str(refused.value) == f"{KNOWN}, or execute the `sql` and `parameters` of app.statement(job) yourself"


def test_for_an_event_the_error_names_only_the_supported_libraries() -> None:
    with pytest.raises(InvalidInput) as refused:
        APP.sync.publish("invoice.paid", conn=CONNECTION)
    assert str(refused.value) == KNOWN


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_error_for_an_async_or_blocking_connection_names_the_right_verb(shop: Shop) -> None:
    app: Any = shop.app
    async with connected(shop.url) as asyncpg_connection:
        with pytest.raises(InvalidInput, match=r"^conn: the Connection of asyncpg is async; use await app\.enqueue$"):
            app.sync.enqueue("ship", conn=asyncpg_connection)
    with psycopg.connect(shop.url) as connection:
        for conn in (connection, connection.cursor()):
            with pytest.raises(InvalidInput, match=r"^conn: the \w+ of psycopg is blocking; use app\.sync\.publish$"):
                await app.publish("invoice.paid", conn=conn)
        with pytest.raises(InvalidInput, match=r"^conn: .* is blocking; use app\.sync\.cancel$"):
            await app.cancel([JOB.id], conn=connection)
    assert shop.jobs() == []


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_finishing_in_an_unsupported_connection_is_refused(shop: Shop) -> None:
    app = Holdfast(shop.url)

    @app.handler("ship")
    async def ship(job: RunningJob[dict[str, int]]) -> None:
        with pytest.raises(InvalidInput) as refused:
            job.finish_in(object())
        assert str(refused.value) == KNOWN

    async with app:
        await app.enqueue("ship")
        report = await app.tick(runners=["queue"])
    assert report.is_fine
    assert shop.rows("SELECT state FROM holdfast.finished") == [{"state": "succeeded"}]


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_a_transaction_object_is_refused_in_place_of_its_connection(shop: Shop) -> None:
    app: Any = shop.app

    def refused(given: object, name: str) -> None:
        line = f"^the {name} is a transaction; pass the connection, session or cursor on which it began$"
        with pytest.raises(InvalidInput, match=line):
            app.sync.enqueue("ship", conn=given)

    with psycopg.connect(shop.url) as connection, connection.transaction() as begun:
        refused(begun, "Transaction of psycopg")
    async with connected(shop.url) as asyncpg_connection:
        refused(asyncpg_connection.transaction(), "Transaction of asyncpg")
    with Session(engine("psycopg", shop.url, READ_COMMITTED)) as session, session.begin() as in_session:
        refused(in_session, "SessionTransaction of sqlalchemy")
    with engine("psycopg", shop.url, READ_COMMITTED).connect() as sqlalchemy_connection:
        refused(sqlalchemy_connection.begin(), "RootTransaction of sqlalchemy")
    async with AsyncSession(async_engine("asyncpg", shop.url, READ_COMMITTED)) as waiting:
        refused(waiting.begin(), "AsyncSessionTransaction of sqlalchemy")
    refused(transaction.atomic(), "Atomic of django")
