"""Wake-ups through RabbitMQ: `Subscriber` receives them for workers, `Trigger` sends them after a producer's commit.

A message is `{"job_id": "<uuid>"}`. Its content is never trusted: a well-formed message only means "look". Broker
failures never reach the caller, and every wait for the broker ends.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.json_text import decode, encode
from holdfast.domain.retry import exponential
from holdfast.logs.records import get_logger
from holdfast.rabbitmq.broker import CONNECT_SECONDS, Broker, as_lost, close, closing, quietly, translated
from holdfast.wake import Wake
from holdfast.wake.link import Link, LinkLost, Outage

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage

__all__ = ["Broker", "Subscriber", "Trigger", "is_well_formed"]

log = get_logger("holdfast.wake")

_BACKOFF = exponential(base="100ms", max="9s", jitter="1s")
_ANSWER_SECONDS = 5.0
_CHECK_SECONDS = 5.0
_LONGEST_MESSAGE = 1000
_KEPT_MESSAGES = 100
_MALFORMED_EVERY_SECONDS = 60.0


def is_well_formed(body: bytes) -> bool:
    if len(body) > _LONGEST_MESSAGE:
        return False
    try:
        message = decode(body.decode())
        job_id = message["job_id"] if isinstance(message, dict) else None
        return isinstance(job_id, str) and str(UUID(job_id)) == job_id.lower()
    except (ValueError, KeyError):
        return False


class Subscriber:
    """Calls `wake(None)` for messages, once for many that arrive together, and if one may have been missed.

    `run` returns only after `stop`, whatever happens to the broker. `malformed` counts dropped messages.
    """

    def __init__(self, broker: Broker, wake: Wake) -> None:
        self._broker = broker
        self._wake = wake
        self._link = Link("RabbitMQ", self._session, _BACKOFF)
        self._changed = asyncio.Event()
        self._newest: AbstractIncomingMessage | None = None
        self._is_rung = False
        self.malformed = 0
        self._malformed_logged = float("-inf")

    @property
    def is_connected(self) -> bool:
        return self._link.is_up

    async def run(self) -> None:
        with quietly():
            await self._link.run()

    def stop(self) -> None:
        """Make `run` return, within a few seconds."""
        self._link.stop()
        self._changed.set()

    async def _session(self) -> None:
        with translated():
            connection = await self._link.within(CONNECT_SECONDS, self._broker.connect())
            async with closing(connection):
                subscription = await self._link.within(_ANSWER_SECONDS, self._subscribe(connection))
                self._link.up()
                self._wake(None)
                await self._serve(*subscription)

    async def _subscribe(self, connection: "AbstractConnection") -> "tuple[AbstractChannel, str]":
        self._newest, self._is_rung = None, False
        channel = await connection.channel(publisher_confirms=False)
        channel.close_callbacks.add(self._hung_up)
        connection.close_callbacks.add(self._hung_up)
        await channel.set_qos(prefetch_count=_KEPT_MESSAGES)
        exchange = await self._broker.declare(channel)
        # Of the messages that arrive while this process is busy, only a few are kept: one wake-up stands for all.
        queue = await channel.declare_queue(
            exclusive=True, auto_delete=True, arguments={"x-max-length": _KEPT_MESSAGES}
        )
        await queue.bind(exchange, self._broker.routing_key)
        await queue.consume(self._arrived)
        return channel, queue.name

    async def _serve(self, channel: "AbstractChannel", queue: str) -> None:
        checked = time.monotonic()
        while not self._link.stopping.is_set():
            self._changed.clear()
            if channel.is_closed:
                raise LinkLost("the broker closed the connection")
            if self._newest is not None:
                newest, self._newest = self._newest, None
                if self._is_rung:
                    self._is_rung = False
                    self._wake(None)
                await self._link.within(_ANSWER_SECONDS, newest.ack(multiple=True))
            elif time.monotonic() >= checked + _CHECK_SECONDS:
                # A broker that hangs does not answer, and one whose queue was deleted says so.
                await self._link.within(_ANSWER_SECONDS, channel.declare_queue(queue, passive=True, exclusive=True))
                checked = time.monotonic()
            else:
                await self._wait(checked + _CHECK_SECONDS - time.monotonic())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _arrived(self, message: "AbstractIncomingMessage") -> None:
        if is_well_formed(message.body):
            self._is_rung = True
        else:
            self._count_malformed(len(message.body))
        self._newest = message
        self._changed.set()

    def _count_malformed(self, size: int) -> None:
        self.malformed += 1
        if time.monotonic() >= self._malformed_logged + _MALFORMED_EVERY_SECONDS:
            self._malformed_logged = time.monotonic()
            log.info("dropped a message that is not a wake-up", bytes=size, malformed=self.malformed)

    def _hung_up(self, *_: object) -> None:
        self._changed.set()


class Trigger:
    """Wakes the workers that listen to the same exchange. Publish after the commit; before it, they find nothing."""

    def __init__(self, broker: Broker, *, patience: timedelta = timedelta(seconds=2)) -> None:
        self._broker = broker
        self._patience = patience.total_seconds()
        self._outage = Outage(
            "RabbitMQ",
            begins="wake-ups are not sent; workers find the jobs when they poll",
            ends="wake-ups are sent again",
        )
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._failures = 0
        self._not_before = 0.0
        self._connecting = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._exchange: AbstractExchange | None = None
        self._closings: set[asyncio.Task[None]] = set()

    @property
    def is_connected(self) -> bool:
        return self._exchange is not None and self._channel is not None and not self._channel.is_closed

    @property
    def rest(self) -> float:
        """Seconds left in which `publish` does not try after a failure."""
        return max(0.0, self._not_before - time.monotonic())

    async def publish(self, job_ids: Sequence[UUID], *, at_once: bool = False) -> bool:
        """Send one message for all these jobs, and return whether the broker took it. Broker errors are never raised.

        Takes at most `patience`. After a failure it returns at once for a while, unless `at_once` asks it to try.
        """
        if not job_ids or (self.rest and not at_once):
            return False
        with quietly():
            try:
                async with asyncio.timeout(self._patience):
                    await self._send(job_ids[0])
            except (Exception, asyncio.CancelledError) as error:
                self._forget_connection()
                if is_being_canceled():
                    raise
                self._failures += 1
                self._not_before = time.monotonic() + _BACKOFF.delay(self._failures, self._random).total_seconds()
                self._outage.goes_on(as_lost(error, f"no answer within {self._patience:g} s"))
                return False
        self._failures = 0
        self._outage.is_over()
        return True

    async def close(self) -> None:
        with quietly():
            self._forget_connection()
            await asyncio.gather(*self._closings, return_exceptions=True)

    async def _send(self, job_id: UUID) -> None:
        import aio_pika

        async with self._connecting:
            exchange = self._exchange if self.is_connected else None
            if exchange is None:
                self._forget_connection()
                self._connection = await self._broker.connect()
                self._channel = await self._connection.channel()
                exchange = self._exchange = await self._broker.declare(self._channel)
        message = aio_pika.Message(encode({"job_id": str(job_id)}).encode(), content_type="application/json")
        await exchange.publish(message, self._broker.routing_key, mandatory=False)

    def _forget_connection(self) -> None:
        connection, self._connection, self._channel, self._exchange = self._connection, None, None, None
        if connection is not None:
            closing = asyncio.create_task(close(connection))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
