"""Fixtures: a separate database for each test, real worker processes, and checks for leaks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast_lab.faults.proxy import Proxy
from tests.databases import Servers
from tests.worker.harness import Database, WorkerProcess, child_processes, eventually

_TABLES = "CREATE TABLE effect (number bigint GENERATED ALWAYS AS IDENTITY, job uuid, fence bigint, note text)"


@pytest.fixture
def database(servers: Servers) -> Iterator[Database]:
    """A migrated database with a table `effect` for the effects of handlers. No connection may remain open."""
    server = servers.get("embedded-18")
    with server.emptied_database(_TABLES) as made, closing(Database(made.name, made.url)) as database:
        yield database


@pytest.fixture
def workers(database: Database, tmp_path: Path) -> Iterator["Workers"]:
    """Starts real worker processes, and kills those still running at the end."""
    started = Workers(database, tmp_path)
    try:
        yield started
    finally:
        started.kill_all()


class Workers:
    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._started: list[WorkerProcess] = []

    def start(self, *flags: str, **settings: object) -> WorkerProcess:
        log = self._folder / f"worker-{len(self._started)}.log"
        worker = WorkerProcess(self._database.url, self._folder, log, settings, *flags)
        self._started.append(worker)
        return worker

    def kill_all(self) -> None:
        for worker in self._started:
            worker.end()


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    """A TCP proxy for the test's database whose connections can be cut."""
    with Proxy.before(database.url) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_thread_or_process_leaks() -> Iterator[None]:
    threads, processes = set(threading.enumerate()), set(child_processes())
    yield
    eventually(
        lambda: not [thread for thread in set(threading.enumerate()) - threads if thread.name.startswith("holdfast")],
        "the worker's threads ended",
    )
    eventually(lambda: not set(child_processes()) - processes, "child processes ended")


@pytest_asyncio.fixture(autouse=True)
async def no_task_leaks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
