"""`emptied`: a migrated database that may have been another test's before, for tests that change nothing but rows."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.databases import Database, Servers, no_task_left
from tests.proxy import Proxy
from tests.wake.conftest import Lines


@pytest.fixture
async def emptied(threads_end: None, servers: Servers) -> AsyncIterator[Database]:
    with servers.get("embedded-18").emptied_database() as database:
        async with no_task_left():
            yield database


@pytest.fixture
def emptied_proxy(emptied: Database) -> Iterator[Proxy]:
    """A TCP address of that database that can be cut off."""
    (folder,) = parse_qs(urlsplit(emptied.url).query)["host"]
    with Proxy(Path(folder, ".s.PGSQL.5432"), emptied.name) as proxy:
        yield proxy


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level("INFO", "holdfast.wake")
    return Lines(caplog)
