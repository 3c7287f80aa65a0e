"""Servers that a test can cut off or stop, and the lines that wake-ups log."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest

from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database
from tests.wake.broker import PrivateBroker, answers, installed_program


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """A TCP address of the test's database that can be cut off."""
    with Proxy.before(database.url) as proxy:
        yield proxy


class Lines:
    """What was logged: one warning per outage, one line when it is over."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def _count(self, *beginnings: str) -> int:
        return sum(record.getMessage().startswith(beginnings) for record in self._caplog.records)

    @property
    def outages(self) -> int:
        """Of one who is woken, or of one who wakes."""
        return self._count("no wake-ups, polling goes on", "wake-ups are not sent")

    @property
    def returns(self) -> int:
        return self._count("wake-ups are back", "wake-ups are sent again")

    @property
    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "holdfast.wake")
    return Lines(caplog)


@pytest.fixture(scope="session")
def broker_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a RabbitMQ that others use as well: nobody may stop it."""
    if answers(5672):
        yield 5672
        return
    own = PrivateBroker(installed_program(), tmp_path_factory.mktemp("rabbitmq"))
    own.start()
    try:
        yield own.port
    finally:
        own.stop()


@pytest.fixture
def url(broker_port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker_port}/"


@pytest.fixture
async def exchange(url: str) -> AsyncIterator[str]:
    """The name of an exchange of the test's own."""
    name = f"holdfast-test-{uuid4().hex}"
    yield name
    async with channel_to(url) as channel:
        await channel.exchange_delete(name)


@asynccontextmanager
async def channel_to(url: str) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    connection = await aio_pika.connect(url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


@pytest.fixture
def broker_proxy(broker_port: int) -> Iterator[Proxy]:
    """The broker, at a port that can be cut off."""
    with Proxy(("127.0.0.1", broker_port)) as proxy:
        yield proxy


@pytest.fixture
def private_broker(tmp_path: Path) -> Iterator[PrivateBroker]:
    """A RabbitMQ that the test may start and stop."""
    own = PrivateBroker(installed_program(), tmp_path)
    try:
        yield own
    finally:
        own.stop()
