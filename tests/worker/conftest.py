"""One embedded PostgreSQL for all test processes, a database of its own for each test, and nothing left behind."""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.opening import migrate
from tests.proxy import Proxy
from tests.worker.harness import Database, WorkerProcess, child_processes, eventually

_TEMPLATE = "worker_template"
_TABLES = "CREATE TABLE effect (number bigint GENERATED ALWAYS AS IDENTITY, job uuid, fence bigint, note text)"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "worker-postgres"
    with EmbeddedServer.start(EmbeddedAddress.parse(f"embedded:{folder}?version=18&durability=off")) as server:
        with Path(f"{folder}.template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make_template(server)
        yield server


def _make_template(server: EmbeddedServer) -> None:
    with psycopg.connect(server.url(), autocommit=True) as admin:
        if admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [_TEMPLATE]).fetchone() is not None:
            return
        admin.execute("DROP DATABASE IF EXISTS worker_template_unfinished")
        admin.execute("CREATE DATABASE worker_template_unfinished")
        asyncio.run(migrate(server.url("worker_template_unfinished"), "holdfast"))
        with psycopg.connect(server.url("worker_template_unfinished"), autocommit=True) as template:
            template.execute(_TABLES)
        admin.execute(f"ALTER DATABASE worker_template_unfinished RENAME TO {_TEMPLATE}")


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[Database]:
    """A migrated database with a table `effect` for what handlers do. Afterwards nobody may be connected to it."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        try:
            yield Database(name, server.url(name), server.url())
            query = (
                "SELECT pid, state, query FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
            )
            eventually(lambda: not admin.execute(query, [name]).fetchall(), "connections to the test's database closed")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def workers(database: Database, tmp_path: Path) -> Iterator["Workers"]:
    """Starts real worker processes; those that still run at the end are killed."""
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
    """A TCP address of the test's database that can be cut off."""
    with Proxy(database.socket, database.name) as proxy:
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
