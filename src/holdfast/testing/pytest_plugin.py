"""Fixtures for anyone with Holdfast and pytest. They need no event loop, and therefore no plugin for async tests.

pytest imports this module whenever it starts, so it imports nothing that is not needed then.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.testing.tested_app import AppUnderTest


@pytest.fixture
def holdfast_memory() -> "Iterator[Callable[[Holdfast], AppUnderTest]]":
    """`jobs = holdfast_memory(app)` opens the app on a store in memory until the test ends.

    `async with holdfast_memory(app) as jobs:` closes it at the end of the block.
    """
    from holdfast.testing.opening import in_memory_for_fixture

    with ExitStack() as exits:
        yield lambda app: in_memory_for_fixture(app, exits)


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[str]:
    """An address for Holdfast of an embedded PostgreSQL that runs until the session ends."""
    from holdfast.store.embedded import EmbeddedServer
    from holdfast.testing.throwaway import embedded_for_tests

    address = embedded_for_tests()
    with EmbeddedServer.start(address):
        yield f"embedded:{quote(str(address.folder))}?durability=off"


@pytest.fixture
def holdfast_database(holdfast_server: str) -> Iterator[str]:
    """An address for any driver of an empty database: for the application's tables, and Holdfast next to them."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from holdfast.testing.throwaway import throwaway_database

    # Run in a thread, because this one may already have an event loop. The runner makes its loop when it first runs
    # something, and must close it in the same thread, because closing leaves the thread without a current loop.
    runner = asyncio.Runner()
    with ThreadPoolExecutor(1) as thread:
        try:
            block = throwaway_database(holdfast_server, None)
            yield thread.submit(runner.run, block.__aenter__()).result()
            thread.submit(runner.run, block.__aexit__(None, None, None)).result()
        finally:
            thread.submit(runner.close).result()


class OpenOnPostgres(Protocol):
    def __call__(self, app: "Holdfast", url: str | None = None) -> "AbstractAsyncContextManager[AppUnderTest]": ...


@pytest.fixture
def holdfast_postgres(request: pytest.FixtureRequest) -> Iterator[OpenOnPostgres]:
    """`async with holdfast_postgres(app) as jobs:` opens the app on a new database of a real PostgreSQL.

    `holdfast_postgres(app, "postgresql://…")` opens it on a new schema of that database.
    """
    from holdfast.testing.opening import on_postgres

    called = entered = 0

    @asynccontextmanager
    async def block(app: "Holdfast", url: str | None) -> "AsyncIterator[AppUnderTest]":
        nonlocal entered
        entered += 1
        async with on_postgres(app, url) as jobs:
            yield jobs

    def open_on_postgres(app: "Holdfast", url: str | None = None) -> "AbstractAsyncContextManager[AppUnderTest]":
        nonlocal called
        called += 1
        return block(app, url or request.getfixturevalue("holdfast_server"))

    yield open_on_postgres
    if entered < called:
        pytest.fail("holdfast_postgres(app) alone opens nothing; use `async with holdfast_postgres(app) as jobs:`")
