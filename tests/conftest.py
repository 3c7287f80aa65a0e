"""Fixtures for every test: PostgreSQL servers, databases and stores.

`database` and `store_case` give each test its own database or store, and fail if the test leaves a connection, a task
or a thread behind. With HOLDFAST_TEST_URL set, everything also runs against that server. Where PgBouncer is installed,
the stores run through one too.
"""

import gc
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings

from holdfast_lab.faults.bouncer import bouncer_program
from tests.databases import (
    Database,
    DatabaseMaker,
    Servers,
    StoreCase,
    no_task_left,
    no_thread_left,
    opened_case,
)

# The duration of an example depends more on this machine than on the code.
settings.register_profile("holdfast", deadline=None, print_blob=True)
# For `pytest --hypothesis-profile soak`, a long and thorough run.
settings.register_profile("soak", settings.get_profile("holdfast"), max_examples=2_000)
settings.load_profile("holdfast")

_URL = os.environ.get("HOLDFAST_TEST_URL") or None
SERVERS = (
    pytest.param("embedded-16", marks=pytest.mark.long),
    "embedded-18",
    *([pytest.param("url", marks=pytest.mark.long)] if _URL else []),
)
STORES = (*SERVERS, *([pytest.param("pgbouncer", marks=pytest.mark.long)] if bouncer_program() else []))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze collected objects: they live to the end, so the garbage collector need not scan them repeatedly."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers of this test session. The first test that needs a server starts it."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist each worker has its own folder, and all of them share the parent.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    servers = Servers(shared, base, _URL)
    try:
        if any(_is_pooled(item) for item in request.session.items):
            # Start it before any test counts threads and processes, because it leaves one of each.
            servers.get("pgbouncer")
        yield servers
    finally:
        servers.close()


def _is_pooled(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and "pgbouncer" in callspec.params.values()


@pytest.fixture
def threads_end() -> Iterator[None]:
    with no_thread_left():
        yield


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, servers: Servers) -> DatabaseMaker:
    """Each server in turn; `parametrize("server", ["embedded-18"], indirect=True)` chooses one."""
    return servers.get(request.param)


@pytest.fixture
async def database(threads_end: None, server: DatabaseMaker) -> AsyncIterator[Database]:
    """A migrated database for this test alone, equivalent to a new one."""
    with server.emptied_database() as database:
        async with no_task_left():
            yield database


@pytest.fixture
async def empty_database(threads_end: None, server: DatabaseMaker) -> AsyncIterator[Database]:
    """A database for this test alone, without any Holdfast schema."""
    with server.fresh_database(migrated=False) as database:
        async with no_task_left():
            yield database


@pytest.fixture(params=("memory", *STORES))
async def store_case(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[StoreCase]:
    """An open, empty store of each kind in turn."""
    async with opened_case(request.param, servers) as case, no_task_left():
        yield case
