"""One connection to a broker for all relays of a process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.waiting import is_being_canceled
from holdfast.wake.broker import Broker, close
from holdfast.wake.link import LinkLost

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractMessage


class OpenExchange:
    """A durable topic exchange, on a channel of its own on which the broker confirms what it has."""

    def __init__(self, channel: "AbstractChannel", exchange: "AbstractExchange") -> None:
        self._channel = channel
        self._exchange = exchange

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    async def publish(self, message: "AbstractMessage", routing_key: str, *, mandatory: bool) -> None:
        """Returns when the broker has confirmed it."""
        with _noticing_the_end():
            await self._exchange.publish(message, routing_key, mandatory=mandatory)


class SharedConnection:
    """Connects when somebody needs it. Each relay has a channel of its own: a broker answers a mistake by closing the
    channel, and the mistake of one relay is nothing to the others."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connecting = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._closings: set[asyncio.Task[None]] = set()

    async def exchange(self, name: str) -> OpenExchange:
        from aio_pika.exceptions import AMQPChannelError

        broker = Broker(self._url, name)
        connection = await self._connected(broker)
        try:
            with _noticing_the_end():
                channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                return OpenExchange(channel, await broker.declare(channel))
        except AMQPChannelError:
            raise
        except Exception:
            if connection is self._connection:
                self.drop()
            raise

    async def _connected(self, broker: Broker) -> "AbstractConnection":
        async with self._connecting:
            connection = self._connection
            # `is_closed` would tell only whether it was closed from here.
            if connection is None or not connection.connected.is_set():
                self.drop()
                connection = self._connection = await broker.connect()
            return connection

    def drop(self) -> None:
        """It is of no more use: the next one who needs it connects anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            closing = asyncio.create_task(close(connection))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    async def close(self) -> None:
        self.drop()
        await asyncio.gather(*self._closings, return_exceptions=True)


@contextmanager
def _noticing_the_end() -> Iterator[None]:
    """What the libraries raise when they are used just after the connection ended is no error of AMQP."""
    try:
        yield
    except RuntimeError as error:
        if is_being_canceled():
            raise
        raise LinkLost("the broker closed the connection") from error
