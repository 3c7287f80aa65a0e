"""`emptied`: a migrated database, possibly reused from another test, for tests that change only rows."""

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast import Holdfast
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
    """A TCP proxy for that database whose connections can be cut."""
    with Proxy.before(emptied.url) as proxy:
        yield proxy


@pytest.fixture(params=["memory", "embedded-18"])
async def app(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[Holdfast]:
    if request.param == "memory":
        async with no_task_left(), Holdfast("memory:") as app:
            yield app
        return
    with servers.get(request.param).emptied_database() as database:
        async with no_task_left(), Holdfast(database.url) as app:
            yield app
