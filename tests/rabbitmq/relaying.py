"""Shared by the tests of relays: an app that relays, a queue that receives, and the logged lines."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from holdfast import Holdfast, JobState
from tests.rabbitmq.conftest import channel_to
from tests.worker.harness import PATIENCE, until


class Warnings:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def count(self, beginning: str) -> int:
        return sum(record.getMessage().startswith(beginning) for record in self._caplog.records)

    @property
    def all(self) -> list[str]:
        """All warnings, except those about attempts of jobs and about the end of an outage."""
        warnings = [each for each in self._caplog.records if each.levelno >= logging.WARNING]
        said = [each.getMessage() for each in warnings if each.name != "holdfast.attempts"]
        return [each for each in said if not each.startswith("events are relayed again")]


class Bound:
    """A queue bound to the exchange."""

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        self._channel = channel
        self._queue = queue

    async def messages(self) -> int:
        """The number of messages in the queue."""
        declared = await self._channel.declare_queue(self._queue.name, passive=True)
        return declared.declaration_result.message_count or 0

    async def take(self) -> AbstractIncomingMessage:
        message = await self._queue.get(no_ack=True, timeout=PATIENCE)
        assert message is not None
        return message

    async def taken(self, count: int) -> Counter[str]:
        """How often each of the first messages arrived, by ID."""
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
    """Move the clock a minute ahead and try all due jobs once more."""
    await app.clock.advance(timedelta(minutes=1))
    assert (await app.tick(runners=["queue"])).is_fine
    return {state: count for state, count in (await app.jobs.count()).items() if count}


async def until_relayed(app: Holdfast) -> None:
    async def are_relayed() -> bool:
        return set(await ticked(app)) == {JobState.SUCCEEDED}

    await until(are_relayed, "every event is relayed")


def tries_of(app: Holdfast) -> int:
    (relay,) = app.relays._open.values()
    return relay._failures
