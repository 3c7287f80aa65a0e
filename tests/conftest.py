"""Fixtures for every test: PostgreSQL servers, databases and stores.

`database` and `store_case` give each test something of its own and fail when it leaves a connection, a task or a
thread behind. With HOLDFAST_TEST_URL set, everything runs against that server as well; with
HOLDFAST_TEST_PGBOUNCER_URL, the address of a PgBouncer before that server, the stores run through it too.
"""

import gc
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import settings

from tests.databases import (
    Database,
    DatabaseMaker,
    Servers,
    StoreCase,
    no_task_left,
    no_thread_left,
    opened_case,
)

# How long an example takes says more about this machine than about the code.
settings.register_profile("holdfast", deadline=None, print_blob=True)
# `pytest --hypothesis-profile soak`, when nobody waits for it.
settings.register_profile("soak", settings.get_profile("holdfast"), max_examples=2_000)
settings.load_profile("holdfast")

_URL = os.environ.get("HOLDFAST_TEST_URL") or None
_POOLER_URL = os.environ.get("HOLDFAST_TEST_PGBOUNCER_URL") or None
SERVERS = (
    pytest.param("embedded-16", marks=pytest.mark.long),
    "embedded-18",
    *([pytest.param("url", marks=pytest.mark.long)] if _URL else []),
)
STORES = (*SERVERS, *([pytest.param("pgbouncer", marks=pytest.mark.long)] if _URL and _POOLER_URL else []))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What was collected stays to the end, so that no search for garbage need go through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers of this test session, each started by whichever test needs it first."""
    base = tmp_path_factory.getbasetemp()
    # Below xdist every worker has a folder of its own, and the parent is common to all.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    servers = Servers(shared, _URL, _POOLER_URL)
    try:
        yield servers
    finally:
        servers.close()


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
    """A migrated database of the test's own, as good as new."""
    with server.emptied_database() as database:
        async with no_task_left():
            yield database


@pytest.fixture
async def empty_database(threads_end: None, server: DatabaseMaker) -> AsyncIterator[Database]:
    """A database of the test's own without any schema of Holdfast's."""
    with server.fresh_database(migrated=False) as database:
        async with no_task_left():
            yield database


@pytest.fixture(params=("memory", *STORES))
async def store_case(request: pytest.FixtureRequest, threads_end: None, servers: Servers) -> AsyncIterator[StoreCase]:
    """An open, empty store of each kind in turn."""
    async with opened_case(request.param, servers) as case, no_task_left():
        yield case
