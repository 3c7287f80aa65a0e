"""Events relayed to RabbitMQ: what arrives, what is refused, and what relays share."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest

from holdfast import Holdfast, InvalidInput, JobState
from holdfast.backoff import exponential
from holdfast.rabbitmq import relay as relay_module
from holdfast.store.contract import JobFilter
from holdfast_lab.faults.proxy import Proxy
from tests.databases import no_task_left
from tests.rabbitmq.relaying import Warnings, bound, relaying, ticked
from tests.worker.harness import codes, final_job

NOBODY = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    async with no_task_left():
        yield


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_BACKOFF", exponential(base="20ms", max="500ms", jitter="20ms"))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Warnings:
    caplog.set_level(logging.INFO, "holdfast")
    return Warnings(caplog)


async def test_an_event_arrives_as_a_message(url: str, exchange: str) -> None:
    async with bound(url, exchange, "invoice.paid") as queue, relaying(url, exchange) as app:
        published = await app.publish(
            "invoice.paid", {"price": 1.5, "name": "Ünal"}, tenant="acme", correlation_id="order-4",
            headers={"traceparent": "00-ab", "count": 7, "deep": {"a": None}},
        )  # fmt: skip
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        message = await queue.take()
        (job,) = await app.jobs.list(JobFilter(), 10)
        headers: Any = job.as_dict()["headers"]
    assert message.body == b'{"price":1.5,"name":"\xc3\x9cnal"}'
    assert (message.message_id, message.type) == (str(published.event_id), "invoice.paid")
    assert (message.routing_key, message.exchange) == ("invoice.paid", exchange)
    assert (message.content_type, message.content_encoding) == ("application/json", "utf-8")
    assert (message.delivery_mode, message.correlation_id) == (aio_pika.DeliveryMode.PERSISTENT, "order-4")
    assert message.timestamp == job.created_at.replace(microsecond=0)
    assert dict(message.headers) == {
        "tenant": "acme",
        "correlation_id": "order-4",
        "published_at": headers["holdfast.event"]["published_at"],
        "job_id": str(job.id),
        "traceparent": "00-ab",
        "count": "7",
        "deep": '{"a":null}',
    }


async def test_events_that_do_not_fit_into_amqp(url: str, exchange: str) -> None:
    async with bound(url, exchange) as queue, relaying(url, exchange) as app:
        await app.publish("invoice." + "é" * 123, correlation_id="é" * 200)
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        message = await queue.take()
        assert (message.correlation_id, message.headers["correlation_id"]) == (None, "é" * 200)
        (refused,) = (await app.publish("invoice.paid", headers={"n" * 129: 1})).new_ids
        by_hand = await app.enqueue(f"relay.{exchange}")
        assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.FAILED: 2}
        assert codes(await final_job(app, refused)) == ["NOT_RELAYABLE"]
        assert codes(await final_job(app, by_hand.id)) == ["NOT_AN_EVENT"]


async def test_a_header_that_clashes_with_a_relay_header_is_renamed(url: str, exchange: str) -> None:
    async with bound(url, exchange) as queue, relaying(url, exchange) as app:
        await app.publish("invoice.paid", tenant="acme", headers={"tenant": "other", "job_id": 7, "event": "x"})
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        headers = (await queue.take()).headers
    assert (headers["tenant"], headers["event.tenant"]) == ("acme", "other")
    assert (headers["event.job_id"], headers["event"], headers["job_id"] == "7") == ("7", "x", False)


async def test_an_event_without_a_queue_is_dropped_by_the_broker_unless_it_is_mandatory(
    url: str, exchange: str, said: Warnings
) -> None:
    async with relaying(url, exchange) as app:
        await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
    async with relaying(url, exchange, mandatory=True) as app:
        events = [await app.publish("invoice.paid") for _ in range(5)]
        for _ in range(3):
            assert await ticked(app) == {JobState.READY: 5}
        assert {job.attempt for job in await app.jobs.list(JobFilter(), 10)} == {0}
        (line,) = said.all
        assert line.startswith("an event is not relayed; it waits")
        assert "no queue is bound for it" in line
        async with bound(url, exchange) as queue:
            assert await ticked(app) == {JobState.SUCCEEDED: 5}
            assert await queue.taken(5) == Counter(str(event.event_id) for event in events)


async def test_an_event_that_the_broker_refuses_waits_until_it_is_accepted(url: str, exchange: str) -> None:
    full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with bound(url, exchange, **full) as queue, relaying(url, exchange) as app:
        await app.publish("invoice.paid")
        await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.READY: 1}
        await queue.take()
        assert await ticked(app) == {JobState.SUCCEEDED: 2}


@pytest.mark.parametrize("header", ["CC", "BCC"])
async def test_a_header_that_would_send_the_message_elsewhere_is_refused(
    url: str, exchange: str, header: str, said: Warnings
) -> None:
    async with relaying(url, exchange) as app:
        (refused,) = (await app.publish("invoice.paid", headers={header: "boss@example.org"})).new_ids
        await app.publish("invoice.paid", headers={header.lower(): "boss@example.org"})
        assert await ticked(app) == {JobState.FAILED: 1, JobState.SUCCEEDED: 1}
        assert codes(await final_job(app, refused)) == ["NOT_RELAYABLE"]
    assert said.count("events are not relayed") == 0


@pytest.mark.fault
async def test_an_exchange_of_the_wrong_type_does_not_affect_other_relays(
    url: str, exchange: str, said: Warnings
) -> None:
    app = relaying(url, exchange)
    app.relay("invoice.*", exchange="amq.fanout", url=url)
    async with bound(url, exchange) as queue, app:
        for _ in range(3):
            await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 3, JobState.READY: 3}
        await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 4, JobState.READY: 4}
        assert max((await queue.taken(4)).values()) == 1
    (line,) = said.all
    assert line.startswith("events are not relayed; they wait in the store")


async def test_all_relays_of_a_broker_share_a_connection(exchange: str, url: str, broker_proxy: Proxy) -> None:
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    app = relaying(through, exchange)
    app.relay("*", exchange=exchange, url=through, name="everything")
    async with app:
        for _ in range(5):
            await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 10}
        assert len(broker_proxy.connections) == 1


async def test_the_broker_of_the_settings_is_used_unless_another_is_named(url: str, exchange: str) -> None:
    app = Holdfast("memory:")
    app.relay("*", exchange=exchange)
    async with app:
        with pytest.raises(InvalidInput, match=r"^relay 'relay\.holdfast-test-.*': name the broker"):
            app.worker()
    app.settings = app.settings.changed(rabbitmq_url=url, rabbitmq_exchange=exchange)
    async with bound(url, exchange, "a") as queue, app:
        await app.publish("a")
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        assert (await queue.take()).routing_key == "a"


def test_an_invalid_relay_is_refused_where_it_is_declared() -> None:
    app = Holdfast("memory:")
    app.relay("*", exchange="events", url=NOBODY)
    for wrong in ({"exchange": ""}, {"exchange": "x", "url": "http://here"}, {"exchange": "events"}, {"limit": 0}):
        with pytest.raises(InvalidInput):
            app.relay("*", **{"exchange": "other", **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^pattern: "):
        app.relay("a*", exchange="another")
