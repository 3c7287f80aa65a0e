"""The code of docs/producers.md runs unchanged, with the libraries that it names."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from holdfast import Enqueued, Holdfast, SyncEnqueued
from holdfast.django.framework import DjangoFramework
from tests.databases import Database, connected
from tests.producer.connection_kinds import READ_COMMITTED, settled
from tests.producer.orm_kinds import async_engine, django_databases, engine
from tests.worker.harness import working

PAGE = (Path(__file__).parents[2] / "docs" / "producers.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(database: Database, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything that the page defines, from its blocks in order."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/producers.md", "exec"), names)  # noqa: S102
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (number integer PRIMARY KEY, invoiced boolean DEFAULT false)")
    app: Holdfast = names["app"]
    app.settings = app.settings.model_copy(update={"store": database.url})
    return names


@asynccontextmanager
async def first_arguments(url: str) -> AsyncIterator[dict[object, Any]]:
    """The first argument for a function of the page, by the type that it expects."""
    async with AsyncExitStack() as opened:
        opened.enter_context(django_databases(url, READ_COMMITTED))
        yield {
            psycopg.Connection: opened.enter_context(psycopg.connect(url, autocommit=True)),
            psycopg.AsyncConnection: await opened.enter_async_context(
                await psycopg.AsyncConnection.connect(url, autocommit=True)
            ),
            asyncpg.Connection: await opened.enter_async_context(connected(url)),
            asyncpg.Pool: await opened.enter_async_context(asyncpg.create_pool(url, min_size=1, max_size=1)),
            Session: opened.enter_context(Session(engine("psycopg", url, READ_COMMITTED))),
            AsyncSession: await opened.enter_async_context(AsyncSession(async_engine("asyncpg", url, READ_COMMITTED))),
        }


async def rows(database: Database, sql: str) -> list[Any]:
    async with connected(database.url) as connection:
        return [row[0] for row in await connection.fetch(sql)]


async def numbers_of_jobs(database: Database) -> list[int]:
    return await rows(database, "SELECT (payload->>'number')::integer FROM holdfast.job ORDER BY 1")


async def test_every_order_of_the_page_is_written_with_its_job(database: Database, page: dict[str, Any]) -> None:
    orders = [function for name, function in page.items() if name.startswith("order") and name != "order_many"]
    assert len(orders) == 8
    async with first_arguments(database.url) as given:
        answers: list[Enqueued | SyncEnqueued] = []
        for number, order in enumerate(orders):
            first, *rest = signature(order).parameters.values()
            answers.append(await settled(order(given[first.annotation], number) if rest else order(number)))
        assert all(answer.is_new for answer in answers)
        again = page["order_again"](given[psycopg.Connection], len(orders) - 1)
        assert again == Enqueued(answers[-1].id, is_new=False)
        many = page["order_many"](given[psycopg.Connection], [100, 101])
        assert [each.is_new for each in many] == [True, True]
    expected = [*range(len(orders)), 100, 101]
    assert await rows(database, "SELECT number FROM orders ORDER BY 1") == expected
    assert await numbers_of_jobs(database) == expected


async def test_the_job_contains_the_key_of_a_flushed_orm_object(database: Database, page: dict[str, Any]) -> None:
    with engine("psycopg", database.url, READ_COMMITTED).begin() as connection:
        page["Base"].metadata.create_all(connection)
    with Session(engine("psycopg", database.url, READ_COMMITTED)) as session:
        page["write_with_orm"](session)
    assert await numbers_of_jobs(database) == await rows(database, "SELECT id FROM customer_order") == [1]


async def test_the_producer_and_the_worker_share_only_a_kind(database: Database, page: dict[str, Any]) -> None:
    worker = Holdfast(database.url)
    worker.handler(page["SEND"])(lambda job: page["Sent"](f"<{job.payload.number}>"))
    async with worker, working(worker):
        assert await page["send_and_wait"](17) == "<17>"


async def test_a_function_that_blocks_needs_nothing_opened(database: Database, page: dict[str, Any]) -> None:
    worker = Holdfast(database.url)
    worker.handler("invoice.remind")(lambda job: None)
    try:
        async with worker, working(worker):
            assert await asyncio.to_thread(page["send_reminder"], 17) == "succeeded"
    finally:
        page["app"].sync.close()


async def test_the_sql_of_the_page_works_from_any_language(database: Database, page: dict[str, Any]) -> None:
    script, numbered = blocks("sql")
    async with connected(database.url) as connection:
        await connection.execute(script)
        row = await connection.fetchrow(numbered, "invoice.send", '{"number": 18}', "mail", "order-18")
        assert row is not None
        assert row["is_new"]
    assert await rows(database, "SELECT number FROM orders") == [17]
    assert await numbers_of_jobs(database) == [17, 18]


async def test_the_page_lists_the_options_in_the_code(database: Database, page: dict[str, Any]) -> None:
    table = PAGE.split("\n## Options\n")[1].split("\n## ")[0]
    written = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", table, re.MULTILINE)
    assert [python for python, _ in written] == list(
        Holdfast.job.__annotations__["options"].__args__[0].__annotations__
    )
    (arguments,) = await rows(database, "SELECT proargnames FROM pg_proc WHERE oid = 'holdfast.enqueue'::regproc")
    assert {sql for _, sql in written} == set(arguments) - {"kind", "payload", "id", "is_new", "replaced"}


async def test_the_handler_of_the_page_finishes_in_its_transaction(database: Database, page: dict[str, Any]) -> None:
    app: Holdfast = page["app"]
    app._framework = DjangoFramework("default")
    with django_databases(database.url, READ_COMMITTED):
        page["order_django"](7)
        async with app:
            assert (await app.tick(runners=["queue"])).is_fine
    assert await rows(database, "SELECT kind FROM holdfast.ready") == ["invoice.archive"]
    assert await rows(database, "SELECT invoiced FROM orders") == [True]
    assert await rows(database, "SELECT state FROM holdfast.finished") == ["succeeded"]
