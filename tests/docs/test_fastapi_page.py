"""docs/fastapi.md is true: its API answers as described, and its test passes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast import JobState
from holdfast.fastapi import lifespan
from holdfast.settings import Settings
from holdfast.testing import in_memory
from holdfast.types import JobFilter
from tests.databases import Database, connected
from tests.docs.pages import module_of
from tests.worker.harness import working

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
def logged_as(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that the page's module sets up logging with. Here, that would change the log of the tests."""
    logged_as: list[Settings] = []
    monkeypatch.setattr("holdfast.logs.setup_logging", logged_as.append)
    return logged_as


@pytest.fixture
def page(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged_as: list[Settings]) -> Any:  # noqa: ANN401
    monkeypatch.setenv("DATABASE_URL", database.url)
    return module_of("fastapi.md", tmp_path)


@pytest.fixture
async def client(database: Database, page: Any) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ANN401
    async with connected(database.url) as connection:
        await connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    transport = httpx.ASGITransport(page.api)
    async with (
        page.api.router.lifespan_context(page.api),
        httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client,
    ):
        yield client


async def test_an_order_and_its_job_exist_together_or_not_at_all(
    database: Database,
    page: Any,  # noqa: ANN401
    client: httpx.AsyncClient,
) -> None:
    assert (await client.post("/orders/17")).status_code == 201
    assert (await client.post("/orders/1017")).status_code == 409
    async with connected(database.url) as connection:
        assert await connection.fetchval("SELECT array_agg(id) FROM orders") == [17]
    assert [job.payload for job in await page.app.jobs.list(JobFilter(), 10)] == [{"order": 17}]


async def test_a_request_gets_the_result_or_an_address_to_ask_later(
    page: Any,  # noqa: ANN401
    client: httpx.AsyncClient,
) -> None:
    later = await client.post("/orders/17/confirmation", params={"wait": 0})
    assert later.status_code == 202
    async with working(page.app):
        answer = await client.post("/orders/17/confirmation")
        assert (answer.status_code, answer.json()) == (200, {"result": "order 17 is confirmed"})
    reminder = await client.post("/orders/17/reminder")
    assert reminder.status_code == 202
    assert (await client.post("/orders/17/reminder")).json() == reminder.json()
    for wait in (-1, 16, "soon"):
        assert (await client.post("/orders/17/confirmation", params={"wait": wait})).status_code == 422


async def test_a_confirmation_that_failed_can_be_asked_for_again(
    page: Any,  # noqa: ANN401
    client: httpx.AsyncClient,
) -> None:
    ids = []
    for _ in range(2):
        later = await client.post("/orders/17/confirmation", params={"wait": 0})
        ids.append(later.json()["job"])
        await page.app.cancel(ids)
    assert len(set(ids)) == 2


def test_the_module_logs_as_a_worker_does(page: Any, logged_as: list[Settings]) -> None:  # noqa: ANN401
    assert logged_as == [page.app.settings]


async def test_with_a_worker_inside_a_test_in_memory_runs_jobs_by_itself(page: Any) -> None:  # noqa: ANN401
    api = FastAPI(lifespan=lifespan(page.app, worker=True))
    async with in_memory(page.app), api.router.lifespan_context(api):
        enqueued = await page.app.enqueue("order.confirm", {"order": 17})
        assert (await page.app.wait(enqueued.id, "20s")).state is JobState.SUCCEEDED


async def test_the_test_of_the_page_passes(page: Any) -> None:  # noqa: ANN401
    await page.test_a_reminder_is_enqueued()
