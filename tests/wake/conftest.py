"""Servers that a test can cut off or stop, and the lines that wake-ups log."""

import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.databases import Database
from tests.wake.broker import PrivateBroker, answers, installed_program
from tests.worker.proxy import Proxy


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """A TCP address of the test's database that can be cut off. For the embedded servers, which have a socket."""
    (folder,) = parse_qs(urlsplit(database.url).query)["host"]
    with Proxy(Path(folder, ".s.PGSQL.5432"), database.name) as proxy:
        yield proxy


class Lines:
    """What was logged: one warning per outage, one line when it is over."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def _count(self, beginning: str) -> int:
        return sum(record.getMessage().startswith(beginning) for record in self._caplog.records)

    @property
    def outages(self) -> int:
        return self._count("no wake-ups, polling goes on")

    @property
    def returns(self) -> int:
        return self._count("wake-ups are back")

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
