"""Wake-ups through a real RabbitMQ. A proxy causes the outages, because other tests use the broker as well."""

import asyncio
import gc
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import aio_pika
import aiormq
import pytest
from aiormq.exceptions import InvalidFrameError

from holdfast.domain.errors import InvalidInput
from holdfast.rabbitmq import broker
from holdfast.rabbitmq import subscriber as rabbitmq
from holdfast.rabbitmq.broker import as_lost
from holdfast.rabbitmq.subscriber import Broker, Subscriber, Trigger, is_well_formed
from holdfast_lab.faults.proxy import Proxy
from tests.databases import no_task_left
from tests.rabbitmq.conftest import channel_to
from tests.wake.conftest import Lines
from tests.worker.harness import PATIENCE, until

GOOD = json.dumps({"job_id": str(uuid4())}).encode()
MALFORMED = {
    "empty": b"",
    "no JSON": b"job",
    "no object": b'["job_id"]',
    "a string": b'"job_id"',
    "no job_id": b'{"id": "0190a0c8-1b5e-7c3e-8d2f-6a1b2c3d4e5f"}',
    "no text": b'{"job_id": 7}',
    "null": b'{"job_id": null}',
    "no UUID": b'{"job_id": "7"}',
    "another spelling": b'{"job_id": "{0190a0c8-1b5e-7c3e-8d2f-6a1b2c3d4e5f}"}',
    "cut off": GOOD[:-1],
    "no UTF-8": b'{"job_id": "\xff"}',
    "too long": GOOD[:-1] + b" " * 1000 + b"}",
    "too deep": b"[" * 900,
}


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    async with no_task_left():
        yield


async def send(url: str, exchange: str, *bodies: bytes, routing_key: str = "jobs.trigger") -> None:
    """Send messages like any producer, and wait for the broker's confirms."""
    async with channel_to(url) as channel:
        to = await channel.get_exchange(exchange)
        for body in bodies:
            await to.publish(aio_pika.Message(body), routing_key, mandatory=False)


class Subscribed:
    def __init__(self, url: str, exchange: str) -> None:
        self.calls: list[str | None] = []
        self.subscriber = Subscriber(Broker(url, exchange), self.calls.append)

    async def connected(self) -> None:
        await until(lambda: self.subscriber.is_connected, "connected")

    async def woken(self) -> None:
        await until(lambda: self.calls, "woken")


@asynccontextmanager
async def running(url: str, exchange: str) -> AsyncIterator[Subscribed]:
    at = Subscribed(url, exchange)
    task = asyncio.create_task(at.subscriber.run())
    try:
        yield at
        assert not task.done()
    finally:
        at.subscriber.stop()
        async with asyncio.timeout(PATIENCE):
            await task
    assert not at.subscriber.is_connected


def through(proxy: Proxy) -> str:
    return f"amqp://guest:guest@127.0.0.1:{proxy.port}/"


def test_well_formed_messages() -> None:
    assert is_well_formed(GOOD)
    assert is_well_formed(b' {"more": [1], "job_id": "0190A0C8-1B5E-7C3E-8D2F-6A1B2C3D4E5F"}')


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_messages(body: bytes) -> None:
    assert not is_well_formed(body)


async def test_a_message_wakes_the_worker_and_so_does_a_new_connection(url: str, exchange: str, lines: Lines) -> None:
    async with running(url, exchange) as at:
        await at.connected()
        assert at.calls == [None]
        at.calls.clear()
        await send(url, exchange, GOOD)
        await at.woken()
        assert at.calls == [None]
    assert lines.warnings == []


async def test_malformed_messages_are_counted_and_dropped_without_a_wake_up(
    url: str, exchange: str, lines: Lines
) -> None:
    async with running(url, exchange) as at:
        await at.connected()
        at.calls.clear()
        await send(url, exchange, *MALFORMED.values())
        await until(lambda: at.subscriber.malformed == len(MALFORMED), "all are counted")
        assert at.calls == []
        await send(url, exchange, GOOD)
        await at.woken()
        assert at.subscriber.malformed == len(MALFORMED)
    assert lines.warnings == []


async def test_messages_with_another_routing_key_are_ignored(url: str, exchange: str) -> None:
    async with running(url, exchange) as at:
        await at.connected()
        at.calls.clear()
        await send(url, exchange, b"not ours", routing_key="jobs.other")
        await send(url, exchange, GOOD)
        await at.woken()
        assert (at.calls, at.subscriber.malformed) == ([None], 0)


async def test_a_busy_worker_keeps_only_a_few_messages_of_a_flood(url: str, exchange: str) -> None:
    async with running(url, exchange) as at:
        await at.connected()
        at.calls.clear()
        flood = threading.Thread(target=lambda: asyncio.run(send(url, exchange, *[b"counted"] * 1000, GOOD)))
        flood.start()
        flood.join()  # blocks the worker's event loop until the flood is over
        await at.woken()
        # The messages already on their way to the worker, and those that the broker kept.
        assert 1 <= at.subscriber.malformed < 200


async def test_every_worker_is_woken(url: str, exchange: str) -> None:
    async with running(url, exchange) as one, running(url, exchange) as two:
        await one.connected()
        await two.connected()
        one.calls.clear()
        two.calls.clear()
        await send(url, exchange, GOOD)
        await one.woken()
        await two.woken()


@pytest.mark.fault
async def test_the_subscriber_waits_for_a_broker_that_is_down_at_the_start(
    url: str, exchange: str, broker_proxy: Proxy, lines: Lines
) -> None:
    broker_proxy.refuse()
    async with running(through(broker_proxy), exchange) as at:
        await until(lambda: lines.outages == 1, "one warning")
        assert (at.subscriber.is_connected, at.calls) == (False, [])
        broker_proxy.flow()
        await at.connected()
        assert at.calls == [None]
    assert (len(lines.warnings), lines.returns) == (1, 1)


@pytest.mark.fault
async def test_an_outage_of_the_broker_is_one_warning_and_the_subscriber_reconnects(
    url: str, exchange: str, broker_proxy: Proxy, lines: Lines
) -> None:
    async with running(through(broker_proxy), exchange) as at:
        await at.connected()
        for outage in (1, 2):
            broker_proxy.refuse()
            await until(lambda: not at.subscriber.is_connected, "the loss is noticed")
            at.calls.clear()
            broker_proxy.flow()
            await at.connected()
            assert at.calls == [None]
            at.calls.clear()
            await send(url, exchange, GOOD)
            await at.woken()
            assert (len(lines.warnings), lines.returns) == (outage, outage)


@pytest.mark.fault
async def test_a_hanging_broker_is_noticed_and_disconnected(
    url: str, exchange: str, broker_proxy: Proxy, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(rabbitmq, "_ANSWER_SECONDS", 1.0)
    async with running(through(broker_proxy), exchange) as at:
        await at.connected()
        broker_proxy.swallow()
        await until(lambda: not at.subscriber.is_connected, "the silence is noticed")
        broker_proxy.flow()
        await at.connected()
    assert (len(lines.warnings), lines.returns) == (1, 1)
    assert "no answer within" in lines.warnings[0]


@pytest.mark.fault
@pytest.mark.parametrize("moment", ["connecting", "connected"])
async def test_a_hanging_broker_does_not_keep_the_subscriber_from_stopping(
    url: str, exchange: str, broker_proxy: Proxy, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every wait for an answer lasts longer than the test.
    for module, name in (
        (rabbitmq, "CONNECT_SECONDS"),
        (rabbitmq, "_ANSWER_SECONDS"),
        (rabbitmq, "_CHECK_SECONDS"),
        (broker, "CONNECT_SECONDS"),
        (broker, "_HEARTBEAT_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 600)
    at = Subscribed(through(broker_proxy), exchange)
    if moment == "connecting":
        broker_proxy.swallow()
    task = asyncio.create_task(at.subscriber.run())
    if moment == "connected":
        await at.connected()
        broker_proxy.swallow()
    await asyncio.sleep(0)
    at.subscriber.stop()
    async with asyncio.timeout(PATIENCE):
        await task


async def test_a_canceled_subscriber_leaves_nothing_behind(url: str, exchange: str) -> None:
    at = Subscribed(url, exchange)
    task = asyncio.create_task(at.subscriber.run())
    await at.connected()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_connection_that_is_refused_during_cancellation_logs_nothing(
    broker_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    close = aiormq.Connection.close

    async def canceled_while_it_closes(self: aiormq.Connection, error: BaseException) -> None:
        connecting.cancel()
        await close(self, error)

    monkeypatch.setattr(aiormq.Connection, "close", canceled_while_it_closes)
    connecting = asyncio.create_task(Broker(f"amqp://guest:guest@127.0.0.1:{broker_port}/nowhere", "any").connect())
    await asyncio.wait([connecting])
    assert isinstance(connecting.exception(), InvalidFrameError)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("amqp://guest:wrong@127.0.0.1:{}/", "login refused; check user and password"),
        ("amqp://guest:guest@127.0.0.1:{}/nowhere", "virtual host refused; check its name"),
        ("amqp://guest:guest@127.0.0.1:1/", "connection refused"),
        ("amqp://guest:guest@no-such-host.invalid:{}/", "host not found"),
        ("amqps://guest:guest@127.0.0.1:{}/", "TLS error: wrong version number"),
    ],
    ids=["password", "virtual host", "port", "host", "no TLS"],
)
async def test_a_wrong_address_is_one_clear_warning(
    broker_port: int, exchange: str, lines: Lines, wrong: str, reason: str
) -> None:
    async with running(wrong.format(broker_port), exchange) as at:
        await until(lambda: lines.outages == 1, "one warning")
        assert not at.subscriber.is_connected
    (warning,) = lines.warnings
    assert warning.partition("error=")[2].strip("\"'") == reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] …"),
            "connection refused",
        ),
        (ConnectionResetError(104, "Connection reset by peer"), "the broker closed the connection"),
        (aio_pika.exceptions.ConnectionClosed(320, "CONNECTION_FORCED - bye"), "CONNECTION_FORCED - bye"),
        (OSError(113, "No route to host"), "No route to host"),
    ],
)
def test_an_error_is_described_in_words_without_its_number(error: Exception, reason: str) -> None:
    assert str(as_lost(error, "late")) == reason


async def test_an_exchange_of_the_wrong_type_is_one_clear_warning_until_it_is_deleted(
    url: str, exchange: str, lines: Lines
) -> None:
    async with channel_to(url) as channel:
        await channel.declare_exchange(exchange, aio_pika.ExchangeType.FANOUT)
        async with running(url, exchange) as at:
            await until(lambda: lines.outages == 1, "one warning")
            await channel.exchange_delete(exchange)
            await at.connected()
    assert len(lines.warnings) == 1
    assert "PRECONDITION_FAILED" in lines.warnings[0]
    assert exchange in lines.warnings[0]


@asynccontextmanager
async def trigger_to(url: str, exchange: str) -> AsyncIterator[Trigger]:
    trigger = Trigger(Broker(url, exchange), patience=timedelta(seconds=1))
    try:
        yield trigger
    finally:
        await trigger.close()


async def test_one_message_is_enough_for_many_jobs(url: str, exchange: str) -> None:
    ids = [uuid4() for _ in range(1000)]
    bodies: list[bytes] = []

    async def keep(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        bodies.append(message.body)

    async with trigger_to(url, exchange) as trigger, channel_to(url) as channel:
        assert await trigger.publish(ids[:1])
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "jobs.trigger")
        await queue.consume(keep, no_ack=True)
        assert not await trigger.publish([])
        assert await trigger.publish(ids)
        await until(lambda: bodies, "the message")
    assert [UUID(json.loads(body)["job_id"]) for body in bodies] == [ids[0]]


async def test_a_trigger_wakes_a_subscriber(url: str, exchange: str, lines: Lines) -> None:
    async with running(url, exchange) as at, trigger_to(url, exchange) as trigger:
        await at.connected()
        at.calls.clear()
        assert all(await asyncio.gather(*(trigger.publish([uuid4()]) for _ in range(10))))
        await at.woken()
        was_connected = trigger.is_connected
    assert (was_connected, trigger.is_connected) == (True, False)
    assert (at.subscriber.malformed, lines.warnings) == (0, [])


@pytest.mark.fault
@pytest.mark.parametrize("trouble", ["refuse", "swallow"])
async def test_a_trigger_never_fails_because_of_the_broker_and_recovers(
    url: str, exchange: str, broker_proxy: Proxy, lines: Lines, trouble: str
) -> None:
    async with trigger_to(through(broker_proxy), exchange) as trigger:
        assert await trigger.publish([uuid4()])
        for outage in (1, 2):
            getattr(broker_proxy, trouble)()
            for _ in range(100):
                assert not await trigger.publish([uuid4()])
            assert lines.outages == outage
            broker_proxy.flow()
            await until(lambda: trigger.publish([uuid4()]), "published again")
            assert (len(lines.warnings), lines.returns) == (outage, outage)


async def test_a_trigger_to_an_unreachable_broker_warns_once(exchange: str, lines: Lines) -> None:
    async with trigger_to("amqp://guest:guest@127.0.0.1:1/", exchange) as trigger:
        for _ in range(100):
            assert not await trigger.publish([uuid4()])
    assert len(lines.warnings) == 1


@pytest.mark.parametrize(
    "bad", ["", "localhost", "http://guest:secret@host", "amqp://", "amqp:///", "amqp://guest:secret@host:port/"]
)
def test_an_invalid_address_is_refused_without_showing_its_password(bad: str) -> None:
    with pytest.raises(InvalidInput, match=r"^rabbitmq_url: write amqp://") as refused:
        Broker(bad)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_that_the_broker_cannot_accept_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^rabbitmq_exchange: "):
        Broker("amqp://host", exchange=name)
    with pytest.raises(InvalidInput, match=r"^rabbitmq_routing_key: "):
        Broker("amqp://host", routing_key=name)


def test_without_aio_pika_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    with pytest.raises(InvalidInput, match=r"pip install aio-pika$"):
        Broker("amqp://host")
