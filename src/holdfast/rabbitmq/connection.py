"""One connection to a broker, shared by all relays of a process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from holdfast.domain.errors import HoldfastError
from holdfast.domain.event_loop import is_being_canceled
from holdfast.rabbitmq.broker import Broker, close
from holdfast.wake.link import LinkLost

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractMessage
    from aiormq.channel import Channel


class ChannelLost(HoldfastError):
    """The broker closed the channel because of one message, and does not say which.

    `is_final` if it will never accept that message; otherwise a permission is missing.
    """

    def __init__(self, reason: str, *, is_final: bool) -> None:
        super().__init__(reason)
        self.is_final = is_final


class OpenExchange:
    """A durable topic exchange on its own channel, on which the broker confirms what it has."""

    def __init__(self, channel: "AbstractChannel", name: str) -> None:
        self._channel = channel
        self._name = name
        self._refusal: ChannelLost | None = None

    @property
    def is_closed(self) -> bool:
        return self._channel.is_closed

    async def publish(self, message: "AbstractMessage", routing_key: str, *, mandatory: bool) -> None:
        """Return when the broker has confirmed the message. Raise ChannelLost if it closed the channel because of this
        message or another one in progress."""
        with _noticing_the_end(), self._noticing_a_refusal():
            channel = cast("Channel", await self._channel.get_underlay_channel())
            publishing = asyncio.ensure_future(self._send(channel, message, routing_key, mandatory=mandatory))
            await self._done_or_closed(publishing)

    async def _send(self, channel: "Channel", message: "AbstractMessage", routing_key: str, *, mandatory: bool) -> None:
        """Send the message, unless the library has already answered a close of the channel.

        It shows such a close only later, and a broker ends the whole connection if anything arrives on a channel after
        the answer. `wait` is off: with it, messages queue until the socket has the one before, and are then sent
        regardless of what has happened since.
        """
        closed = getattr(channel, "_close_exception", None)
        if closed is not None:
            raise closed
        await channel.basic_publish(
            message.body,
            exchange=self._name,
            routing_key=routing_key,
            properties=message.properties,
            mandatory=mandatory,
            wait=False,
        )

    async def _done_or_closed(self, publishing: asyncio.Future[Any]) -> None:
        """Wait for either: an unwritten message would wait forever on a connection that has ended."""
        closed = asyncio.ensure_future(self._channel.closed())
        try:
            await asyncio.wait([publishing, closed], return_when=asyncio.FIRST_COMPLETED)
            if not publishing.done():
                raise self._refusal or LinkLost("the broker closed the connection")
            publishing.result()
        finally:
            for each in (publishing, closed):
                each.cancel()
            await asyncio.gather(publishing, closed, return_exceptions=True)

    @contextmanager
    def _noticing_a_refusal(self) -> Iterator[None]:
        from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed

        try:
            yield
        except (ChannelPreconditionFailed, ChannelAccessRefused) as error:
            is_final = isinstance(error, ChannelPreconditionFailed)
            self._refusal = ChannelLost(str(error), is_final=is_final)
            raise self._refusal from error


class SharedConnection:
    """Connects on demand. Each relay has its own channels: a broker answers a mistake by closing the channel, and a
    mistake of one relay must not affect the others."""

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
                await broker.declare(channel)
                return OpenExchange(channel, name)
        except AMQPChannelError:
            raise
        except Exception:
            if connection is self._connection:
                self.drop()
            raise

    async def _connected(self, broker: Broker) -> "AbstractConnection":
        async with self._connecting:
            connection = self._connection
            # `is_closed` would only show whether it was closed from here.
            if connection is None or not connection.connected.is_set():
                self.drop()
                connection = self._connection = await broker.connect()
            return connection

    def drop(self) -> None:
        """Discard an unusable connection; the next use connects anew."""
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
    """Raise LinkLost for the RuntimeError that the libraries raise if used just after the connection ended."""
    try:
        yield
    except RuntimeError as error:
        if is_being_canceled():
            raise
        raise LinkLost("the broker closed the connection") from error
