"""A kind that no process has ever declared causes one warning, at the cost of at most one query."""

import asyncio
from collections.abc import AsyncIterator, Collection

import asyncpg
import pytest

from holdfast import Holdfast, RunningJob, StoreUnavailable
from tests.databases import Servers, no_task_left
from tests.worker.harness import working


@pytest.fixture(params=["memory", "embedded-18"])
async def app(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[Holdfast]:
    if request.param == "memory":
        async with no_task_left(), Holdfast("memory:") as app:
            yield app
        return
    with servers.get(request.param).emptied_database() as database:
        async with no_task_left(), Holdfast(database.url) as app:
            yield app


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "holdfast.producer"]


async def test_each_undeclared_kind_causes_one_warning(
    app: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    kinds = type(app.opened.kinds)
    original = kinds.undeclared

    async def undeclared(self: object, names: Collection[str]) -> set[str]:
        asked.append(set(names))
        return await original(self, names)  # type: ignore[arg-type]

    monkeypatch.setattr(kinds, "undeclared", undeclared)
    await app.opened.kinds.declare({"known": 1})
    for _ in range(2):
        await asyncio.gather(*(app.enqueue("knwon") for _ in range(3)))
        await app.enqueue_many([app.job("known"), app.job("other"), app.job("other")])
    assert warnings(caplog) == [
        f"no worker has ever declared this kind; its jobs wait for one that does  kind={kind}"
        for kind in ("knwon", "other")
    ]
    assert asked == [{"knwon"}, {"known", "other"}]


async def test_the_warning_suggests_the_kind_of_a_handler_with_a_similar_name(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("receipt.send")
    async def send(job: RunningJob[object]) -> None: ...

    await app.enqueue_many([app.job("reciept.send"), app.job("report.build")])
    assert warnings(caplog) == [
        f"no worker has ever declared this kind{meant}; its jobs wait for one that does  kind={kind}"
        for kind, meant in (("reciept.send", " (did you mean receipt.send?)"), ("report.build", ""))
    ]


async def test_a_job_in_the_callers_transaction_causes_a_warning_while_the_app_is_open(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    with servers.get("embedded-18").emptied_database() as database:
        app = Holdfast(database.url)
        connection = await asyncpg.connect(database.url)
        try:
            await app.enqueue("knwon", conn=connection)
            assert warnings(caplog) == []
            async with app, connection.transaction():
                await app.enqueue("knwon", conn=connection)
                await app.enqueue_many([app.job("knwon")], conn=connection)
        finally:
            await connection.close()
    assert warnings(caplog) == ["no worker has ever declared this kind; its jobs wait for one that does  kind=knwon"]


async def test_a_worker_declares_its_kinds_for_producers_without_handlers(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    assert await app.opened.kinds.undeclared(["greet"]) == {"greet"}

    @app.handler("greet", version=3)
    async def greet(job: RunningJob[object]) -> None: ...

    async with working(app):
        enqueued = await app.enqueue("greet")
        await app.wait(enqueued.id, "20s")
    assert await app.opened.kinds.undeclared(["greet"]) == set()
    assert warnings(caplog) == []


async def test_an_app_can_declare_its_kinds_without_a_worker(app: Holdfast) -> None:
    @app.handler("greet")
    async def greet(job: RunningJob[object]) -> None: ...

    for _ in range(2):
        await app.declare()
    assert await app.opened.kinds.undeclared(["greet", "other"]) == {"other"}


async def test_an_outage_during_the_check_costs_the_warning_but_not_the_job(
    app: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = type(app.opened.kinds)

    async def away(self: object, names: Collection[str]) -> set[str]:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(kinds, "undeclared", away)
        assert (await app.enqueue("elsewhere")).is_new
    assert warnings(caplog) == []
    await app.enqueue("elsewhere")
    assert len(warnings(caplog)) == 1
