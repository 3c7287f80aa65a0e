"""However the broker behaves, no event is lost, and none delays other jobs."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.backoff import exponential
from holdfast.rabbitmq import broker as broker_module
from holdfast.rabbitmq import message as message_module
from holdfast.rabbitmq import relay as relay_module
from holdfast.rabbitmq import relays
from holdfast.rabbitmq.connection import ChannelLost, OpenExchange, SharedConnection
from holdfast.store.contract import JobFilter
from holdfast.wake.link import LinkLost
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Servers, no_task_left
from tests.rabbitmq.broker import PrivateBroker
from tests.rabbitmq.conftest import channel_to
from tests.rabbitmq.muting import muting_proxy
from tests.rabbitmq.relaying import Bound, Warnings, bound, relaying, ticked, tries_of, until_relayed
from tests.worker.harness import PATIENCE, codes, drained, errors, fast, final_job, until, working


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
        # Only messages on the same channel are sent again, and only once; others on the connection are not affected.
        assert max(arrived.values()) <= 2
        assert {arrived[str(event.event_id)] for event in events[-5:]} == {1}
    assert said.count("events are not relayed") == 0


class Forbidding(OpenExchange):
    """Behaves as if the user may publish only some types."""

    def __init__(self, real: OpenExchange) -> None:
        super().__init__(real._channel, real._name)
        self.sent: list[str] = []

    async def publish(self, message: Any, routing_key: str, *, mandatory: bool) -> None:  # noqa: ANN401
        self.sent.append(routing_key)
        if routing_key == "invoice.secret":
            raise ChannelLost("ACCESS_REFUSED - access to topic 'invoice.secret' refused", is_final=False)
        await super().publish(message, routing_key, mandatory=mandatory)


async def test_a_message_that_is_not_permitted_costs_attempts_and_affects_no_others(
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
        # Sent once among others, then separately; from its second attempt on, only separately.
        assert [each.sent for each in opened] == [
            ["invoice.secret"], ["invoice.secret"], ["invoice.paid"] * 3, ["invoice.secret"]
        ]  # fmt: skip
        assert set(await queue.taken(3)) == {str(event.event_id) for event in events}
    assert said.all == []


@pytest.mark.fault
async def test_an_outage_costs_events_no_attempt_and_logs_one_line(
    url: str, exchange: str, broker_proxy: Proxy, said: Warnings
) -> None:
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    async with bound(url, exchange) as queue, relaying(through, exchange) as app:
        await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 1}
        broker_proxy.refuse()
        for _ in range(50):
            await app.publish("invoice.paid")
        assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.READY: 50}
        assert tries_of(app) <= 2, "one of the many under way speaks for all"
        for _ in range(2):
            assert await ticked(app) == {JobState.SUCCEEDED: 1, JobState.READY: 50}
        assert {job.attempt for job in await app.jobs.list(JobFilter(state=JobState.READY), 100)} == {0}
        (line,) = said.all
        assert line.startswith("events are not relayed; they wait in the store")
        broker_proxy.flow()
        await until_relayed(app)
        assert len(await queue.taken(await queue.messages())) == 51
        assert said.count("events are relayed again") == 1
    assert len(said.all) == 1


@pytest.mark.fault
async def test_a_silent_broker_does_not_delay_other_jobs() -> None:
    """Silent from the first connection attempt on: the events occupy one of two slots and wait."""
    connects: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connects.append(writer)
        try:
            await reader.read()
        finally:
            writer.transport.abort()

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
            connects[0].transport.abort()
        # If the connection opened in the meantime, a task holds it and closes it.
        server.close()
        for writer in connects:
            writer.transport.abort()
        await until(lambda: all(writer.transport.is_closing() for writer in connects), "nobody is connected")


@pytest.mark.fault
async def test_an_outage_costs_the_store_almost_nothing(
    url: str, exchange: str, broker_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    through = f"amqp://guest:guest@127.0.0.1:{broker_proxy.port}/"
    async with bound(url, exchange) as queue, relaying(through, exchange) as app:
        async with working(app, fast(concurrency=20)) as worker:
            await app.publish("invoice.paid")
            await until(lambda: worker.tally["succeed"] == 1, "the first event is relayed")
            broker_proxy.refuse()
            monkeypatch.setattr(relay_module, "_BACKOFF", exponential(base="5ms", max="5ms", jitter="1ms"))
            for _ in range(200):
                await app.publish("invoice.paid")
            await until(lambda: tries_of(app) >= 20, "the relay has tried a few times")
            # One event per attempt, plus those that were claimed when the outage began.
            assert worker.tally["snooze"] <= 20 + 2 * 20 + 5
            broker_proxy.flow()
            assert await drained(app) == {JobState.SUCCEEDED: 201}
        assert len(await queue.taken(await queue.messages())) == 201


@pytest.mark.fault
async def test_a_hanging_broker_delays_neither_the_event_nor_the_shutdown(
    url: str, exchange: str, broker_proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Heartbeats would notice only much later.
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
            assert len(await queue.taken(await queue.messages())) == 2
            broker_proxy.swallow()
        broker_proxy.flow()


async def test_a_connection_that_cannot_open_a_channel_is_replaced(
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
async def test_a_lost_confirm_duplicates_a_message_but_loses_none(
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
    assert line.startswith("events are not relayed; they wait in the store")


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.postgres
async def test_a_restarted_broker_gets_all_events(
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
                for number in range(60):
                    if number == 20:
                        await asyncio.to_thread(private_broker.stop)
                    events.append(await app.publish("invoice.paid", {"number": number}))
                # Jobs that do not use the broker do not wait for it.
                await final_job(app, (await app.enqueue("other")).id)
                assert (await app.jobs.count())[JobState.READY] > 0
                await asyncio.to_thread(private_broker.start)
                assert await drained(app) == {JobState.SUCCEEDED: 61}
    async with channel_to(private_broker.url) as channel:
        queue = await channel.declare_queue("all", passive=True)
        arrived = await Bound(channel, queue).taken(queue.declaration_result.message_count or 0)
    assert set(arrived) == {str(event.event_id) for event in events}
    assert said.count("events are not relayed") == said.count("events are relayed again") == 1
    assert len(said.all) == 1
