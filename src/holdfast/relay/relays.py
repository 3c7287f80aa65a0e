"""Relays: each is the handler of a subscription, and passes its events on to an exchange of RabbitMQ.

An event is relayed when the broker has confirmed it. Until then its job is snoozed, again and again, which takes no
attempt: however long the broker is away, no event becomes a dead letter for it.
"""

import asyncio
import time
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, InvalidInput, Snooze
from holdfast.handlers import Handler, RunningJob, make_handler
from holdfast.job import ATTEMPTS
from holdfast.json_text import Json
from holdfast.log import get_logger
from holdfast.relay.connection import OpenExchange, SharedConnection
from holdfast.relay.message import event_of, message_of
from holdfast.retry import exponential
from holdfast.waiting import is_being_canceled
from holdfast.wake.broker import Broker, as_lost, quietly
from holdfast.wake.link import LinkLost, Outage

if TYPE_CHECKING:
    from aio_pika.abc import AbstractMessage

log = get_logger("holdfast.relay")

_PATIENCE_SECONDS = 10.0
_BACKOFF = exponential(base="200ms", max="30s", jitter="1s")
_REFUSED_SECONDS = 10.0
_SHORTEST_SECONDS = 0.1
_REFUSED_LOGGED_EVERY_SECONDS = 60.0


class Refused(HoldfastError):
    """The broker is there, and did not take the message."""


@dataclass(frozen=True, slots=True)
class RelayTerms:
    """Where the events go. `url` is None for the broker of the app's settings."""

    exchange: str
    url: str | None
    mandatory: bool

    def __post_init__(self) -> None:
        # Refuses what no broker could take. The address may still come from the settings.
        Broker(self.url or "amqp://localhost", self.exchange)


class Relay:
    """Publishes to one exchange with confirms. What is under way waits for nothing but its own confirm."""

    def __init__(self, terms: RelayTerms, connection: SharedConnection) -> None:
        self._terms = terms
        self._connection = connection
        self._exchange: OpenExchange | None = None
        self._opening = asyncio.Lock()
        self._outage = Outage(
            f"RabbitMQ, exchange {terms.exchange}",
            begins="events are not relayed, they wait in the store",
            ends="events are relayed again",
        )
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._failures = 0
        self._not_before = 0.0
        self._refused_logged = float("-inf")

    async def handle(self, job: RunningJob[Json]) -> None:
        message, type = message_of(job), event_of(job).type
        try:
            with quietly():
                await self._publish(message, type)
        except LinkLost:
            raise Snooze(self._pause(max(self._rest, _SHORTEST_SECONDS))) from None
        except Refused as error:
            self._tell_refused(type, error)
            raise Snooze(self._pause(_REFUSED_SECONDS)) from None

    async def _publish(self, message: "AbstractMessage", type: str) -> None:
        """Returns when the broker has confirmed the message.

        LinkLost when it cannot be reached or does not answer: it may have the message or not. Refused when it said no.
        """
        from aio_pika.exceptions import DeliveryError, PublishError

        exchange = await self._opened()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await exchange.publish(message, type, mandatory=self._terms.mandatory)
        except PublishError as error:
            raise Refused("no queue is bound for it") from error
        except DeliveryError as error:
            raise Refused("a negative confirm; is a queue full?") from error
        except (Exception, asyncio.CancelledError) as error:
            self._raise_if_lost(error, exchange)
            raise
        if exchange is self._exchange:
            self._failures = 0
            Context().run(self._outage.is_over)

    async def _opened(self) -> OpenExchange:
        async with self._opening:
            if self._exchange is not None and not self._exchange.is_closed:
                return self._exchange
            if self._rest:
                # Many wait for the one that tries, and what it found out holds for them all.
                raise LinkLost("the broker was not there a moment ago")
            self._exchange = None
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    self._exchange = await self._connection.exchange(self._terms.exchange)
            except (Exception, asyncio.CancelledError) as error:
                self._raise_if_lost(error, None)
                raise
            return self._exchange

    def _raise_if_lost(self, error: BaseException, exchange: OpenExchange | None) -> None:
        lost = as_lost(error, f"no answer within {_PATIENCE_SECONDS:g} s")
        if not isinstance(lost, LinkLost) or is_being_canceled():
            return
        if exchange is self._exchange:
            # The first to notice speaks for all that were under way, and not about its own job.
            self._exchange = None
            self._failures += 1
            self._not_before = time.monotonic() + _BACKOFF.delay(self._failures, self._random).total_seconds()
            Context().run(self._outage.goes_on, lost)
            if isinstance(error, TimeoutError):
                self._connection.drop()
        if lost is not error:
            raise lost from error

    @property
    def _rest(self) -> float:
        """For how many seconds after a failure nothing is tried."""
        return max(0.0, self._not_before - time.monotonic())

    def _pause(self, seconds: float) -> timedelta:
        """Spread, so that all that waited do not come back at one moment."""
        return timedelta(seconds=seconds * (1 + self._random.random()))

    def _tell_refused(self, type: str, error: Refused) -> None:
        if time.monotonic() >= self._refused_logged + _REFUSED_LOGGED_EVERY_SECONDS:
            self._refused_logged = time.monotonic()
            log.warning("an event is not relayed, it waits", exchange=self._terms.exchange, type=type, error=str(error))


class Relays:
    """The relays of an app, by the name of their subscription. They connect with their first event."""

    def __init__(self) -> None:
        self._terms: dict[str, RelayTerms] = {}
        self._open: dict[str, Relay] = {}
        self._connections: dict[str, SharedConnection] = {}
        self._settings_url: str | None = None

    def handler(self, name: str, terms: RelayTerms, queue: str, limit: int) -> Handler:
        """That of a new relay. Its attempts are for what nobody foresaw: an outage takes none."""
        handler = make_handler(
            name,
            self.handle,
            queue=queue,
            attempts=ATTEMPTS[-1],
            backoff="exponential base=1s max=1m jitter=1s",
            timeout="1m",
            limit=limit,
        )
        self._terms[name] = terms
        return handler

    def use(self, url: str | None) -> None:
        """The broker of those that name none. InvalidInput if there is none either."""
        self._settings_url = url
        for name in self._terms:
            self._url_of(name)

    async def handle(self, job: RunningJob[Json]) -> None:
        """The handler of every relay's kind."""
        relay = self._open.get(job.kind)
        if relay is None:
            url = self._url_of(job.kind)
            connection = self._connections.setdefault(url, SharedConnection(url))
            relay = self._open[job.kind] = Relay(self._terms[job.kind], connection)
        await relay.handle(job)

    async def close(self) -> None:
        connections, self._connections = self._connections, {}
        self._open = {}
        with quietly():
            for connection in connections.values():
                await connection.close()

    def _url_of(self, name: str) -> str:
        url = self._terms[name].url or self._settings_url
        if url is None:
            raise InvalidInput(f"relay {name!r}: name the broker, with url= or in HOLDFAST_RABBITMQ_URL")
        return url
