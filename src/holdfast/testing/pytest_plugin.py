"""Fixtures for everybody who has Holdfast and pytest. They need no event loop, and so no plugin for async tests.

pytest imports this module at every start: it imports nothing that is not needed then.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.testing.tested_app import AppUnderTest


@pytest.fixture
def holdfast_memory() -> "Iterator[Callable[[Holdfast], AppUnderTest]]":
    """`jobs = holdfast_memory(app)`: the app is open on a store in memory until the end of the test."""
    from holdfast.testing.opening import in_memory_for_fixture

    with ExitStack() as exits:
        yield lambda app: exits.enter_context(in_memory_for_fixture(app))


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[str]:
    """The address, for Holdfast, of an embedded PostgreSQL that runs until the end of the session."""
    from holdfast.store.embedded import EmbeddedServer
    from holdfast.testing.throwaway import embedded_for_tests

    address = embedded_for_tests()
    with EmbeddedServer.start(address):
        yield f"embedded:{quote(str(address.folder))}?durability=off"


@pytest.fixture
def holdfast_database(holdfast_server: str) -> Iterator[str]:
    """The address, for any driver, of an empty database: for the application's tables, with Holdfast beside them."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from holdfast.testing.throwaway import throwaway_database

    # In a thread, because this one may have an event loop. The runner makes its own when it first runs something, and
    # closes it where it was made: a runner's last act is to leave its thread without any.
    runner = asyncio.Runner()
    with ThreadPoolExecutor(1) as thread:
        try:
            block = throwaway_database(holdfast_server, None)
            yield thread.submit(runner.run, block.__aenter__()).result()
            thread.submit(runner.run, block.__aexit__(None, None, None)).result()
        finally:
            thread.submit(runner.close).result()


@pytest.fixture
def holdfast_postgres(holdfast_server: str) -> "Callable[[Holdfast], AbstractAsyncContextManager[AppUnderTest]]":
    """`async with holdfast_postgres(app) as jobs:` opens the app on a new database of a real PostgreSQL."""
    from holdfast.testing.opening import on_postgres

    return lambda app: on_postgres(app, holdfast_server)
