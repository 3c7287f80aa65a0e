"""Servers that a test can cut off, and the lines logged about wake-ups."""

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


_BACK = ("wake-ups are back", "wake-ups are sent again", "notifications for waits are back", "store available again")


class Lines:
    """The log: one warning per outage, and another one when it is over."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def _count(self, *beginnings: str) -> int:
        return sum(record.getMessage().startswith(beginnings) for record in self._caplog.records)

    @property
    def outages(self) -> int:
        """The number of logged outages of listeners and of senders."""
        return self._count("no wake-ups; polling continues", "wake-ups are not sent")

    @property
    def returns(self) -> int:
        return sum(line.startswith(_BACK) for line in self._warnings)

    @property
    def warnings(self) -> list[str]:
        """The warnings, without those that an outage is over."""
        return [line for line in self._warnings if not line.startswith(_BACK)]

    @property
    def _warnings(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "holdfast.wake")
    return Lines(caplog)
