"""`emptied`: a migrated database that may have been another test's before, for tests that change nothing but rows."""

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, Servers, no_task_left
from tests.wake.conftest import lines

__all__ = ["lines"]


@pytest.fixture
async def emptied(threads_end: None, servers: Servers) -> AsyncIterator[Database]:
    with servers.get("embedded-18").emptied_database() as database:
        async with no_task_left():
            yield database


@pytest.fixture
def emptied_proxy(emptied: Database) -> Iterator[Proxy]:
    """A TCP address of that database that can be cut off."""
    with Proxy.before(emptied.url) as proxy:
        yield proxy
