"""Events in an application's tests: subscribers receive them on either store, and no event reaches a broker."""

from contextlib import AbstractAsyncContextManager

import pytest

from holdfast import Holdfast, InvalidInput, RunningJob
from holdfast.testing import AppUnderTest, HandlerFailed, check_idempotency, in_memory, on_postgres
from tests.databases import Database

NOBODY = "amqp://guest:guest@127.0.0.1:1/"

embedded = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


def shop() -> Holdfast:
    app = Holdfast()

    @app.on("paid", name="receipt.send")
    async def receipt(job: RunningJob[dict[str, int]]) -> None: ...

    @app.handler("pay.wrong")
    async def wrong(job: RunningJob[dict[str, int]]) -> None:
        await app.publish("paid", {"order": 17})

    @app.handler("pay.right")
    async def right(job: RunningJob[dict[str, int]]) -> None:
        await app.publish("paid", {"order": 17}, key="order-17")

    return app


@embedded
async def test_subscribers_receive_events_on_postgres_and_in_memory(database: Database) -> None:
    app = shop()
    opened: list[AbstractAsyncContextManager[AppUnderTest]] = [in_memory(app), on_postgres(app, database.url)]
    for block in opened:
        async with block as jobs:
            await app.publish("paid", {"order": 17})
            assert [job.kind for job in (await jobs.drain()).succeeded] == ["receipt.send"]


@embedded
async def test_an_event_published_twice_on_postgres_is_found(database: Database) -> None:
    app = shop()
    report = await check_idempotency(app, "pay.wrong", database=database.url)
    assert [problem.step and problem.step.number for problem in report.problems] == [1, None]
    assert (await check_idempotency(app, "pay.right", database=database.url)).ok


@embedded
@pytest.mark.parametrize("url", [NOBODY, None])
async def test_a_relay_in_a_test_reaches_no_broker_and_records_its_events(database: Database, url: str | None) -> None:
    app = Holdfast()
    app.relay("*", exchange="events", url=url)
    opened: list[AbstractAsyncContextManager[AppUnderTest]] = [in_memory(app), on_postgres(app, database.url)]
    for block in opened:
        async with block as jobs:
            published = await app.publish("invoice.paid", {"number": 17}, headers={"trace": "ab"}, tenant="acme")
            assert jobs.relayed() == []
            assert len((await jobs.drain(schedules=True)).succeeded) == 1
            (relayed,) = jobs.relayed()
            assert (relayed.exchange, relayed.type, relayed.event_id) == (
                "events", "invoice.paid", published.event_id
            )  # fmt: skip
            assert relayed.payload == {"number": 17}
            assert (relayed.headers["trace"], relayed.headers["tenant"]) == ("ab", "acme")
            await app.publish("invoice.paid")
            assert (await app.tick()).is_fine
            assert len(jobs.relayed()) == 2
            await app.publish("invoice.paid", headers={"CC": "x"})
            with pytest.raises(HandlerFailed, match="give it another name"):
                await jobs.drain()
    if url is None:
        app.settings = app.settings.changed(store="memory:")
        async with app:
            with pytest.raises(InvalidInput, match="name the broker"):
                app.worker()
