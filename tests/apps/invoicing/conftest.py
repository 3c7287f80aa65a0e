"""A database with Holdfast's schema and the service's tables, and the API on a real socket."""

import asyncio
import logging
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from apps.invoicing.api.app import create_api
from apps.invoicing.api.service import Service
from apps.invoicing.api.serving import ApiServer
from apps.invoicing.database import sql
from apps.invoicing.settings import Settings
from tests.apps.invoicing.issuing import Bench, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer, mail_server
from tests.apps.invoicing.steps import Client
from tests.databases import Database, DatabaseMaker, Servers, no_task_left

# In foreign-key order: the deletion that empties a database between tests does not sort out dependencies.
TABLES = (
    "invoicing.reminder",
    "invoicing.class_bill",
    "invoicing.email_delivery",
    "invoicing.tax_snapshot",
    "invoicing.invoice_line",
    "invoicing.invoice",
    "invoicing.number_series",
    "invoicing.enrolment",
    "invoicing.customer",
    "platform.document",
    "platform.file",
)
TOKEN = "a token of these tests"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the service's variables, in case the person running the tests has a service configured."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def logging_is_restored() -> Iterator[None]:
    """The service sets up logging, in a test's process if the test calls it there."""
    loggers = [logging.getLogger(name) for name in (None, "asyncpg.pool", "httpx")]
    before = [(each, each.handlers[:], each.level) for each in loggers]
    yield
    for each, handlers, level in before:
        each.handlers[:] = handlers
        each.setLevel(level)


@pytest.fixture
def server(servers: Servers) -> DatabaseMaker:
    """One PostgreSQL version is enough here: Holdfast's own tests cover the differences between versions."""
    return servers.get("embedded-18")


@pytest.fixture
async def database(threads_end: None, server: DatabaseMaker) -> AsyncIterator[Database]:
    with server.emptied_database(sql("schema")) as database:
        async with no_task_left():
            yield database
        with psycopg.connect(database.url) as connection:
            for table in TABLES:
                connection.execute(SQL("DELETE FROM {}").format(Identifier(*table.split("."))))


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    return Settings.load(
        database_url=database.url,
        files_url=f"file://{tmp_path / 'files'}",
        download_link_secret="a secret of these tests",
        worker_api_service_token=TOKEN,
    )


@dataclass(frozen=True, slots=True)
class Api:
    """A running API and a client for it."""

    url: str
    client: Client
    service: Service
    server: ApiServer


@asynccontextmanager
async def running_api(settings: Settings) -> AsyncIterator[Api]:
    """Serve the API in this process on a free port. Leaving the block stops it, like a signal."""
    api = create_api(settings)
    server = ApiServer(api)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with api.router.lifespan_context(api):
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits()) as http:
                    yield Api(url, Client(http, TOKEN), api.state.service, server)
            finally:
                server.should_exit = True
                await serving


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with running_api(settings) as api:
        yield api


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """A copy of the service's templates that a test may break."""
    return Path(shutil.copytree(Settings.model_fields["templates_folder"].default, tmp_path / "templates"))


@pytest.fixture
async def mails() -> AsyncIterator[MailServer]:
    async with mail_server() as server:
        yield server


@pytest.fixture
async def bench(database: Database, mails: MailServer, templates: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """The worker. Tests run its ticks one at a time."""
    given = {"smtp_url": mails.url, "templates_folder": templates, "outbox_retry_jitter_ms": 0}
    async with opened_bench(worker_settings(database.url, tmp_path, **given)) as bench:
        yield bench
