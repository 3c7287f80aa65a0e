"""Servers that a test can cut off, and the lines that wake-ups log."""

import logging
from collections.abc import Iterator

import pytest

from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database


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
