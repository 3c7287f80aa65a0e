"""RabbitMQ: a broker shared by the tests or started for one test, and addresses that can be cut off."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest

from holdfast_lab.faults.proxy import Proxy
from tests.rabbitmq.broker import PrivateBroker, answers, installed_program
from tests.wake.conftest import lines, proxy

__all__ = ["lines", "proxy"]


@pytest.fixture(scope="session")
def broker_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a RabbitMQ that other tests use as well, so no test may stop it."""
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
    """The name of an exchange used only by this test."""
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
    """A proxy in front of the broker that can be cut off."""
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
