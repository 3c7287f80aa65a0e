"""One relay: the handler of a subscription, which passes events on to a RabbitMQ exchange.

An event is relayed when the broker has confirmed it. Until then its job is snoozed repeatedly, which uses up no
attempt, so a broker outage of any length turns no event into a dead letter.
"""

import asyncio
import time
from contextvars import Context
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from holdfast.domain.crash_points import around
from holdfast.domain.errors import HoldfastError, InvalidInput, Permanent, Retryable, Snooze
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.handlers import Room, RunningJob
from holdfast.domain.json_text import Json
from holdfast.domain.retry import exponential
from holdfast.logs.records import get_logger
from holdfast.rabbitmq.broker import LONGEST_NAME_BYTES, Broker, as_lost, quietly
from holdfast.rabbitmq.connection import ChannelLost, OpenExchange, SharedConnection
from holdfast.rabbitmq.message import event_of, message_of
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
    """The broker answered, but did not take the message."""


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """Where the events go. `url` is None for the broker in the app's settings."""

    exchange: str
    url: str | None = field(repr=False)
    mandatory: bool

    def __post_init__(self) -> None:
        # Refuse values that no broker can accept. The address may still come from the settings.
        if not isinstance(self.exchange, str) or not 0 < len(self.exchange.encode()) <= LONGEST_NAME_BYTES:
            raise InvalidInput(f"exchange: {self.exchange!r} is not text of 1 to {LONGEST_NAME_BYTES} bytes")
        Broker(self.url or "amqp://localhost", self.exchange)


class _Lane:
    """A channel, opened on demand by the first attempt that needs it."""

    def __init__(self) -> None:
        self.exchange: OpenExchange | None = None
        self.opening = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        return self.exchange is not None and not self.exchange.is_closed


class Relay:
    """Publishes to one exchange with publisher confirms. Each message in progress waits only for its own.

    A broker that rejects a message closes the channel. All messages in progress on it are then retried on a second
    channel, one at a time, which shows which of them makes the broker close it.
    """

    def __init__(self, target: RelayTarget, connection: SharedConnection) -> None:
        self._target = target
        self._connection = connection
        self._shared = _Lane()
        self._apart = _Lane()
        self._turn = asyncio.Lock()
        self._outage = Outage(
            f"RabbitMQ, exchange {target.exchange}",
            begins="events are not relayed; they wait in the store",
            ends="events are relayed again",
        )
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._failures = 0
        self._not_before = 0.0
        self._refused_logged = float("-inf")

    @property
    def room(self) -> Room:
        """One event is enough to find out whether the broker is back; the others wait in the store at no cost."""
        if self._shared.is_open:
            return Room()
        return Room(0, self._rest) if self._rest else Room(1)

    async def handle(self, job: RunningJob[Json]) -> None:
        message, type = message_of(job), event_of(job).type
        try:
            with quietly():
                if job.attempt > 1 or not await self._publish_with_others(message, type):
                    await self._publish_alone(message, type)
        except LinkLost:
            raise Snooze(self._pause(max(self._rest, _SHORTEST_SECONDS))) from None
        except Refused as error:
            self._tell_refused(type, error)
            raise Snooze(self._pause(_REFUSED_SECONDS)) from None

    async def _publish_with_others(self, message: "AbstractMessage", type: str) -> bool:
        """False if the broker closed the channel, for this message or another."""
        try:
            await self._publish(self._shared, message, type)
        except ChannelLost as error:
            log.debug("channel closed; retrying its messages one by one", error=str(error))
            return False
        return True

    async def _publish_alone(self, message: "AbstractMessage", type: str) -> None:
        async with self._turn:
            try:
                await self._publish(self._apart, message, type)
            except ChannelLost as error:
                reason = f"the broker does not accept this message: {error}"
                if error.is_final:
                    raise Permanent("NOT_RELAYABLE", reason) from error
                raise Retryable(reason, code="NOT_RELAYED") from error

    @around("relay")
    async def _publish(self, lane: _Lane, message: "AbstractMessage", type: str) -> None:
        """Return when the broker has confirmed the message.

        Raise LinkLost if it cannot be reached or does not answer; it may or may not have the message. Raise Refused if
        it refused the message.
        """
        from aio_pika.exceptions import DeliveryError, PublishError

        exchange = await self._opened(lane)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await exchange.publish(message, type, mandatory=self._target.mandatory)
        except PublishError as error:
            raise Refused("no queue is bound for it") from error
        except DeliveryError as error:
            raise Refused("a negative confirm; is a queue full?") from error
        except ChannelLost:
            if lane.exchange is exchange:
                lane.exchange = None
            raise
        except (Exception, asyncio.CancelledError) as error:
            self._raise_if_lost(error, lane, exchange)
            raise
        if exchange is lane.exchange:
            self._failures = 0
            Context().run(self._outage.is_over)

    async def _opened(self, lane: _Lane) -> OpenExchange:
        if lane.exchange is not None and lane.is_open:
            return lane.exchange
        if self._rest or lane.opening.locked():
            # Others do not wait for the one that tries, or a broker that does not answer would fill all slots.
            raise LinkLost("the broker was unreachable a moment ago")
        async with lane.opening:
            lane.exchange = None
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    lane.exchange = await self._connection.exchange(self._target.exchange)
            except (Exception, asyncio.CancelledError) as error:
                self._raise_if_lost(error, lane, None)
                raise
            return lane.exchange

    def _raise_if_lost(self, error: BaseException, lane: _Lane, exchange: OpenExchange | None) -> None:
        lost = as_lost(error, f"no answer within {_PATIENCE_SECONDS:g} s")
        if not isinstance(lost, LinkLost) or is_being_canceled():
            return
        if exchange is lane.exchange:
            # The first to notice logs the outage for all messages in progress, and not under its own job.
            lane.exchange = None
            self._failures += 1
            self._not_before = time.monotonic() + _BACKOFF.delay(self._failures, self._random).total_seconds()
            Context().run(self._outage.goes_on, lost)
            if isinstance(error, TimeoutError):
                self._connection.drop()
        if lost is not error:
            raise lost from error

    @property
    def _rest(self) -> float:
        """Seconds left in which nothing is tried after a failure."""
        return max(0.0, self._not_before - time.monotonic())

    def _pause(self, seconds: float) -> timedelta:
        """Spread the delay, so waiting events do not all come back at the same moment."""
        return timedelta(seconds=seconds * (1 + self._random.random()))

    def _tell_refused(self, type: str, error: Refused) -> None:
        if time.monotonic() >= self._refused_logged + _REFUSED_LOGGED_EVERY_SECONDS:
            self._refused_logged = time.monotonic()
            log.warning(
                "an event is not relayed; it waits", exchange=self._target.exchange, type=type, error=str(error)
            )
