"""Events relayed to RabbitMQ: what arrives, and that nothing is lost however the broker behaves."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from holdfast import Holdfast, InvalidInput, JobState, RunningJob, exponential
from holdfast.relay import message as message_module
from holdfast.relay import relay as relay_module
from holdfast.relay import relays
from holdfast.relay.connection import ChannelLost, OpenExchange, SharedConnection
from holdfast.store.contract import JobFilter
from holdfast.wake import broker as broker_module
from holdfast.wake.link import LinkLost
from tests.databases import Servers, no_task_left
from tests.proxy import Proxy
from tests.wake.broker import PrivateBroker
from tests.wake.conftest import channel_to
from tests.wake.muting import muting_proxy
from tests.worker.harness import PATIENCE, codes, drained, errors, fast, final_job, until, working

NOBODY = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    async with no_task_left():
        yield


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_BACKOFF", exponential(base="20ms", max="500ms", jitter="20ms"))


class Warnings:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def count(self, beginning: str) -> int:
        return sum(record.getMessage().startswith(beginning) for record in self._caplog.records)

    @property
    def all(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Warnings:
    caplog.set_level(logging.INFO, "holdfast")
    return Warnings(caplog)


class Bound:
    """A queue that is bound to the exchange."""

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        self._channel = channel
        self._queue = queue

    async def messages(self) -> int:
        """How many are in it."""
        declared = await self._channel.declare_queue(self._queue.name, passive=True)
        return declared.declaration_result.message_count or 0

    async def take(self) -> AbstractIncomingMessage:
        message = await self._queue.get(no_ack=True, timeout=PATIENCE)
        assert message is not None
        return message

    async def taken(self, count: int) -> Counter[str]:
        """How often each of the first messages came, by its id."""
        return Counter([(await self.take()).message_id or "" for _ in range(count)])


@asynccontextmanager
async def bound(url: str, exchange: str, pattern: str = "#", **arguments: Any) -> AsyncIterator[Bound]:  # noqa: ANN401
    async with channel_to(url) as channel:
        where = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(exclusive=True, arguments=arguments)
        await queue.bind(where, pattern)
        yield Bound(channel, queue)


def relaying(url: str, exchange: str, *, mandatory: bool = False) -> Holdfast:
    app = Holdfast("memory:")
    app.relay("invoice.*", exchange=exchange, url=url, mandatory=mandatory)
    return app


async def ticked(app: Holdfast) -> dict[JobState, int]:
    """A minute later, everything that is due is tried once more."""
    await app.clock.advance(timedelta(minutes=1))
    assert (await app.tick(runners=["queue"])).is_fine
    return {state: count for state, count in (await app.jobs.count()).items() if count}


async def until_relayed(app: Holdfast) -> None:
    async def are_relayed() -> bool:
        return set(await ticked(app)) == {JobState.SUCCEEDED}

    await until(are_relayed, "every event is relayed")


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


async def test_what_amqp_has_no_room_for(url: str, exchange: str) -> None:
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


async def test_a_header_of_the_event_gives_way_and_is_not_lost(url: str, exchange: str) -> None:
    async with bound(url, exchange) as queue, relaying(url, exchange) as app:
        await app.publish("invoice.paid", tenant="acme", headers={"tenant": "other", "job_id": 7, "event": "x"})
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        headers = (await queue.take()).headers
    assert (headers["tenant"], headers["event.tenant"]) == ("acme", "other")
    assert (headers["event.job_id"], headers["event"], headers["job_id"] == "7") == ("7", "x", False)


async def test_an_event_that_no_queue_wants_is_dropped_by_the_broker_unless_it_is_mandatory(
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
        assert line.startswith("an event is not relayed, it waits")
        assert "no queue is bound for it" in line
        async with bound(url, exchange) as queue:
            assert await ticked(app) == {JobState.SUCCEEDED: 5}
            assert await queue.taken(5) == Counter(str(event.event_id) for event in events)


async def test_an_event_that_the_broker_refuses_waits_until_it_takes_it(url: str, exchange: str) -> None:
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
async def test_a_message_for_which_the_broker_closes_the_channel_fails_alone(
    url: str, exchange: str, said: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_module, "_ROUTING_HEADERS", frozenset[str]())
    app = relaying(url, exchange)
    app.relay("order.*", exchange=exchange, url=url, name="another")
    async with bound(url, exchange) as queue, app:
        events = [await app.publish("invoice.paid"), await app.publish("order.paid")]
        assert await ticked(app) == {JobState.SUCCEEDED: 2}
        events += [await app.publish("invoice.paid") for _ in range(5)]
        (poison,) = (await app.publish("invoice.paid", headers={"CC": "boss@example.org"})).new_ids
        events += [await app.publish("invoice.paid") for _ in range(5)]
        events += [await app.publish("order.paid") for _ in range(5)]
        assert await ticked(app) == {JobState.SUCCEEDED: 17, JobState.FAILED: 1}
        assert codes(failed := await final_job(app, poison)) == ["NOT_RELAYABLE"]
        assert "PRECONDITION_FAILED" in str(errors(failed)[0]["message"])
        arrived = await queue.taken(await queue.messages())
        assert set(arrived) == {str(event.event_id) for event in events}
        # Nobody on the same connection is disturbed but those on the same channel, and those once.
        assert max(arrived.values()) <= 2
        assert {arrived[str(event.event_id)] for event in events[-5:]} == {1}
    assert said.count("events are not relayed") == 0


class Forbidding(OpenExchange):
    """As if the user may publish some types and not others."""

    def __init__(self, real: OpenExchange) -> None:
        super().__init__(real._channel, real._name)
        self.sent: list[str] = []

    async def publish(self, message: Any, routing_key: str, *, mandatory: bool) -> None:  # noqa: ANN401
        self.sent.append(routing_key)
        if routing_key == "invoice.secret":
            raise ChannelLost("ACCESS_REFUSED - access to topic 'invoice.secret' refused", is_final=False)
        await super().publish(message, routing_key, mandatory=mandatory)


async def test_a_message_that_is_not_permitted_takes_attempts_and_disturbs_nobody(
    url: str, exchange: str, said: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Forbidding] = []

    class Connection(SharedConnection):
        async def exchange(self, name: str) -> OpenExchange:
            opened.append(Forbidding(await super().exchange(name)))
            return opened[-1]

    monkeypatch.setattr(relays, "SharedConnection", Connection)
    async with bound(url, exchange) as queue, relaying(url, exchange) as app:
        (secret,) = (await app.publish("invoice.secret")).new_ids
        events = [await app.publish("invoice.paid") for _ in range(3)]
        for _ in range(2):
            assert await ticked(app) == {JobState.SUCCEEDED: 3, JobState.READY: 1}
        job = await app.jobs.get(secret)
        assert job is not None
        assert (job.attempt, codes(job)) == (2, ["NOT_RELAYED", "NOT_RELAYED"])
        # Once among others, then apart; and only apart from its second attempt on.
        assert [each.sent for each in opened] == [
            ["invoice.secret"], ["invoice.secret"], ["invoice.paid"] * 3, ["invoice.secret"]
        ]  # fmt: skip
        assert set(await queue.taken(3)) == {str(event.event_id) for event in events}
    assert said.all == []


@pytest.mark.fault
async def test_events_of_an_outage_take_no_attempt_and_one_line(
    url: str, exchange: str, broker_proxy: Proxy, said: Warnings
) -> None:
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    async with bound(url, exchange) as queue, relaying(through, exchange) as app:
        await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        broker_proxy.cut()
        for _ in range(50):
            await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.READY: 50}
        assert tries_of(app) <= 2, "one of the many under way speaks for all"
        for _ in range(2):
            assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.READY: 50}
        assert {job.attempt for job in await app.jobs.list(JobFilter(state=JobState.READY), 100)} == {0}
        (line,) = said.all
        assert line.startswith("events are not relayed, they wait in the store")
        broker_proxy.restore()
        await until_relayed(app)
        assert len(await queue.taken(51)) == 51
        assert said.count("events are relayed again") == 1
    assert len(said.all) == 1


@pytest.mark.fault
async def test_a_broker_that_says_nothing_holds_up_no_other_job() -> None:
    """From the first connect on: the events take one slot of the two, and wait."""
    connects: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connects.append(writer)
        await reader.read()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    app = relaying(f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/", "events")

    @app.handler("other")
    async def other(job: RunningJob[Any]) -> None: ...

    async with server, app:
        for _ in range(50):
            await app.publish("invoice.paid")
        async with working(app, fast(concurrency=2)) as worker:
            await until(lambda: connects, "the relay connects")
            for _ in range(10):
                await app.enqueue("other")
            await until(lambda: worker.tally["succeed"] == 10, "the other jobs are done")
            assert worker.tally == {"succeed": 10}, "while the first connect goes on"
            assert (await app.jobs.count())[JobState.READY] == 49
            connects[0].close()


@pytest.mark.fault
async def test_an_outage_costs_the_store_next_to_nothing(
    url: str, exchange: str, broker_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    async with bound(url, exchange) as queue, relaying(through, exchange) as app:
        async with working(app, fast(concurrency=20)) as worker:
            await app.publish("invoice.paid")
            await until(lambda: worker.tally["succeed"] == 1, "the first event is relayed")
            broker_proxy.cut()
            monkeypatch.setattr(relay_module, "_BACKOFF", exponential(base="5ms", max="5ms", jitter="1ms"))
            for _ in range(200):
                await app.publish("invoice.paid")
            await until(lambda: tries_of(app) >= 20, "the relay has tried a few times")
            # One event for each try. Those that were claimed when the outage began are the rest.
            assert worker.tally["snooze"] <= 20 + 2 * 20 + 5
            broker_proxy.restore()
            assert await drained(app) == {JobState.SUCCEEDED: 201}
        assert len(await queue.taken(201)) == 201


def tries_of(app: Holdfast) -> int:
    (relay,) = app.relays._open.values()
    return relay._failures


@pytest.mark.fault
async def test_a_broker_that_hangs_holds_up_neither_the_event_nor_the_end(
    url: str, exchange: str, broker_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Heartbeats would notice in the end.
    monkeypatch.setattr(broker_module, "_HEARTBEAT_SECONDS", 600)
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    async with bound(url, exchange) as queue, asyncio.timeout(PATIENCE):
        async with relaying(through, exchange) as app:
            await app.publish("invoice.paid")
            assert await ticked(app) == {JobState.SUCCEEDED: 1}
            monkeypatch.setattr(relay_module, "_PATIENCE_SECONDS", 0.5)
            broker_proxy.half_open()
            await app.publish("invoice.paid")
            assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.READY: 1}
            monkeypatch.setattr(relay_module, "_PATIENCE_SECONDS", 10.0)
            await until_relayed(app)
            assert len(await queue.taken(2)) == 2
            broker_proxy.swallow()
        broker_proxy.restore()


async def test_a_connection_on_which_no_channel_can_be_opened_is_given_up(
    url: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**options: object) -> None:
        raise RuntimeError("the transport is closed")

    connection = SharedConnection(url)
    await connection.exchange(exchange)
    monkeypatch.setattr(connection._connection, "channel", refuse)
    with pytest.raises(LinkLost, match="closed the connection"):
        await connection.exchange(exchange)
    assert not (await connection.exchange(exchange)).is_closed
    await connection.close()


@pytest.mark.fault
async def test_a_lost_confirm_doubles_a_message_and_loses_none(
    url: str, exchange: str, broker_port: int, said: Warnings
) -> None:
    async with muting_proxy(broker_port) as proxy, bound(url, exchange) as queue:
        app = relaying(f"amqp://guest:guest@127.0.0.1:{proxy.port}/", exchange)
        async with app:
            first = await app.publish("invoice.paid")
            assert await ticked(app) == {JobState.SUCCEEDED: 1}
            proxy.mute()
            events = [await app.publish("invoice.paid") for _ in range(10)]
            async with working(app, fast(concurrency=20)):

                async def have_arrived() -> bool:
                    return await queue.messages() == 11

                await until(have_arrived, "the broker has every message")
                assert (await app.jobs.count())[JobState.SUCCEEDED] == 1, "nobody believes in what was not confirmed"
                proxy.cut()
                assert await drained(app) == {JobState.SUCCEEDED: 11}
            twice = {str(event.event_id): 2 for event in events}
            assert await queue.taken(21) == Counter({str(first.event_id): 1, **twice})
    (line,) = said.all
    assert line.startswith("events are not relayed, they wait in the store")


@pytest.mark.fault
async def test_an_exchange_of_another_type_is_nothing_to_the_other_relays(
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
    assert line.startswith("events are not relayed, they wait in the store")


async def test_all_relays_of_a_broker_share_a_connection(exchange: str, url: str, broker_proxy: Proxy) -> None:
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    app = relaying(through, exchange)
    app.relay("*", exchange=exchange, url=through, name="everything")
    async with app:
        for _ in range(5):
            await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 10}
        assert broker_proxy.connections == 1


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


def test_what_no_broker_could_take_is_refused_where_it_is_written() -> None:
    app = Holdfast("memory:")
    app.relay("*", exchange="events", url=NOBODY)
    for wrong in ({"exchange": ""}, {"exchange": "x", "url": "http://here"}, {"exchange": "events"}, {"limit": 0}):
        with pytest.raises(InvalidInput):
            app.relay("*", **{"exchange": "other", **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^pattern: "):
        app.relay("a*", exchange="another")


@pytest.mark.fault
@pytest.mark.postgres
async def test_a_broker_stopped_and_started_during_300_events_gets_them_all(
    private_broker: PrivateBroker, servers: Servers, said: Warnings
) -> None:
    await asyncio.to_thread(private_broker.start)
    async with channel_to(private_broker.url) as channel:
        exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue("all", durable=True)
        await queue.bind(exchange, "invoice.#")
    with servers.get("embedded-18").fresh_database() as database:
        app = Holdfast(database.url)
        app.relay("invoice.*", exchange="events", url=private_broker.url)

        @app.handler("other")
        async def other(job: RunningJob[Any]) -> None: ...

        events = []
        async with app:
            await app.declare()
            async with working(app):
                for number in range(300):
                    if number == 100:
                        await asyncio.to_thread(private_broker.stop)
                    events.append(await app.publish("invoice.paid", {"number": number}))
                # Those who have nothing to do with the broker do not wait for it.
                await final_job(app, (await app.enqueue("other")).id)
                assert (await app.jobs.count())[JobState.READY] > 0
                await asyncio.to_thread(private_broker.start)
                assert await drained(app) == {JobState.SUCCEEDED: 301}
    async with channel_to(private_broker.url) as channel:
        queue = await channel.declare_queue("all", passive=True)
        arrived = await Bound(channel, queue).taken(queue.declaration_result.message_count or 0)
    assert set(arrived) == {str(event.event_id) for event in events}
    assert said.count("events are not relayed") == said.count("events are relayed again") == 1
    assert len(said.all) == 1
