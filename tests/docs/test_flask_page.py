"""docs/flask.md is true: its views answer as described, in threads and after a fork, and its tests pass."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from holdfast.types import JobFilter
from tests.databases import Database, connected
from tests.docs.pages import blocks_of, module_of
from tests.testing.projects import run_pytest
from tests.worker.harness import working

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
def page(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DATABASE_URL", database.url)
    # A fork in another test must not affect this test's engine.
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: functions["after_in_child"])
    *module, _tests = blocks_of("flask.md")
    page = module_of("flask.md", tmp_path, module)
    yield page
    page.app.sync.close()
    page.engine.dispose()


async def test_the_views_answer_as_the_page_says(database: Database, page: Any) -> None:  # noqa: ANN401
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    client = page.web.test_client()

    def ask() -> None:
        assert client.post("/orders/17").status_code == 201
        assert client.post("/orders/1017").status_code == 409
        assert [job.payload for job in page.app.sync.jobs.list(JobFilter(), 10)] == [{"order": 17}]
        later = client.post("/orders/18/confirmation?wait=0")
        assert later.status_code == 202
        assert client.get(later.json["status"]).json == {"state": "ready", "result": None}
        reminder = client.post("/orders/18/reminder")
        assert reminder.status_code == 202
        assert client.post("/orders/18/reminder").json == reminder.json
        assert client.post("/orders/19/async-reminder").status_code == 202

    def ask_again() -> None:
        answer = client.post("/orders/18/confirmation")
        assert (answer.status_code, answer.json) == (200, {"result": "order 18 is confirmed"})

    await asyncio.to_thread(ask)
    async with page.app, working(page.app):
        await asyncio.to_thread(ask_again)


async def test_a_view_waits_no_longer_than_it_may(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    waited: list[str] = []

    def result(_: object, timeout: str) -> None:
        waited.append(timeout)
        raise TimeoutError

    monkeypatch.setattr("holdfast.domain.enqueued.SyncEnqueued.result", result)
    client = page.web.test_client()
    for wait in ("3", "1000000", "-1", "soon"):
        answer = await asyncio.to_thread(client.post, f"/orders/18/confirmation?wait={wait}")
        assert answer.status_code == 202
    assert waited == ["3s", "15s", "0s", "10s"]


async def test_a_confirmation_that_failed_can_be_asked_for_again(page: Any) -> None:  # noqa: ANN401
    client = page.web.test_client()
    first = await asyncio.to_thread(client.post, "/orders/18/confirmation?wait=0")
    assert (await asyncio.to_thread(client.post, "/orders/18/confirmation?wait=0")).json == first.json
    await asyncio.to_thread(page.app.sync.cancel, [first.json["status"].removeprefix("/jobs/")])
    again = await asyncio.to_thread(client.post, "/orders/18/confirmation?wait=0")
    assert (again.status_code, again.json == first.json) == (202, False)


async def test_an_outage_of_the_database_is_a_503(page: Any, database: Database) -> None:  # noqa: ANN401
    client = page.web.test_client()
    page.Session.configure(bind=create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere"))
    answer = await asyncio.to_thread(client.post, "/orders/17")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


@pytest.mark.long
async def test_the_tests_of_the_page_pass(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url)
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    *module, tests = blocks_of("flask.md")
    files = {"shop.py": "\n\n".join(module), "test_shop.py": tests}
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error")
    output = await asyncio.to_thread(lambda: run_pytest(tmp_path, *options, files=files))
    assert "4 passed" in output
