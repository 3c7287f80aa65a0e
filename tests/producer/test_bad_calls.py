"""A call that cannot be meant is one line that says what to do, and never reaches the database."""

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

# Any, because wrong types are what is tested.
APP: Any = Holdfast("postgresql://nobody@nowhere/nothing")
CONNECTION = object()
JOB = APP.job("ship")

A_JOB = "give the kind as text, or what app.job(…) built"
JOBS = "build each with app.job(kind, payload)"
ID = "pass a uuid.UUID"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: APP.enqueue_in("ship", {"order": 1}),
            "the connection comes first: app.enqueue_in(connection, 'ship', …)",
        ),
        (lambda: APP.enqueue_in("ship", JOB), "the connection comes first: app.enqueue_in(connection, 'ship', …)"),
        (lambda: APP.enqueue_in(JOB, CONNECTION), "the connection comes first: app.enqueue_in(connection, job)"),
        (lambda: APP.enqueue_in(CONNECTION, None), f"job: None is neither a kind nor a job; {A_JOB}"),
        (lambda: APP.enqueue_in(CONNECTION, 5), f"job: 5 is neither a kind nor a job; {A_JOB}"),
        (lambda: APP.enqueue_in(CONNECTION, {"order": 1}), f"job: {{'order': 1}} is neither a kind nor a job; {A_JOB}"),
        (lambda: APP.enqueue_in(CONNECTION, ""), "kind: is empty; give it at least one character"),
        (lambda: APP.enqueue_in(CONNECTION, "ship", id="abc"), f"id: 'abc' is not a UUID; {ID}"),
        (lambda: APP.enqueue_statement("ship"), "job: 'ship' is not a job; build it with app.job(kind, payload)"),
        (lambda: APP.enqueue_many_in(CONNECTION, ["ship"]), f"jobs: 'ship' is not a job; {JOBS}"),
        (lambda: APP.enqueue_many_in(CONNECTION, [JOB, ("ship", {})]), f"jobs: ('ship', {{}}) is not a job; {JOBS}"),
        (lambda: APP.enqueue_many_in(CONNECTION, [{"kind": "ship"}]), f"jobs: {{'kind': 'ship'}} is not a job; {JOBS}"),
        (lambda: APP.enqueue_many_in(CONNECTION, JOB), "jobs: this is one job; give it to enqueue_in, or give a list"),
        (lambda: APP.enqueue_many_in(CONNECTION, "ship"), f"jobs: 'ship' is not a list of jobs; {JOBS}"),
        (lambda: APP.enqueue_many_in(CONNECTION, None), f"jobs: None is not a list of jobs; {JOBS}"),
        (
            lambda: APP.publish_in("invoice.paid", {"number": 1}),
            "the connection comes first: app.publish_in(connection, 'invoice.paid', …)",
        ),
        (lambda: APP.publish_in(CONNECTION, 5), "event type: 5 is not text"),
        (lambda: APP.publish_in(CONNECTION, "invoice.paid", id="abc"), f"id: 'abc' is not a UUID; {ID}"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said_before_the_connection_is_looked_at(
    call: Callable[[], object], line: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()
    assert str(refused.value) == line


async def test_a_line_does_not_grow_with_what_was_given() -> None:
    with pytest.raises(InvalidInput) as refused:
        APP.enqueue_in(CONNECTION, {"order": "x" * 1000})
    assert len(str(refused.value)) < 200


async def test_enqueueing_many_on_the_store_s_own_connection_says_the_same() -> None:
    app: Any = Holdfast("memory:")
    async with app:
        for wrong, line in {"ship": "is not a list of jobs", ("ship",): "is not a job", JOB: "this is one job"}.items():
            with pytest.raises(InvalidInput, match=line):
                await app.enqueue_many(wrong)


KNOWN = "builtins.object is not a connection known here; pass one of asyncpg, psycopg, SQLAlchemy or Django"


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: APP.enqueue_in(CONNECTION, "ship"), "app.enqueue_statement(job)"),
        (lambda: APP.enqueue_many_in(CONNECTION, [JOB]), "app.enqueue_statement(job) for each job"),
        (lambda: APP.publish_in(CONNECTION, "invoice.paid"), "app.publish_statement(type, payload)"),
    ],
)
def test_who_has_a_library_that_is_not_known_is_told_which_statement_to_execute(
    call: Callable[[], object], instead: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()
    assert str(refused.value) == f"{KNOWN}, or execute the `sql` and `parameters` of {instead} yourself"


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_a_handler_that_finishes_in_no_connection_is_told_which_it_can_have(shop: Shop) -> None:
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
async def test_a_transaction_is_told_from_the_connection_that_it_was_begun_on(shop: Shop) -> None:
    def refused(given: object, name: str) -> None:
        line = f"^the {name} is a transaction; pass the connection, session or cursor on which it was begun$"
        with pytest.raises(InvalidInput, match=line):
            shop.app.enqueue_in(given, "ship")

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
