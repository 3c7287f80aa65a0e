"""A database with Holdfast's schema and the service's tables, and the API on a real socket."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
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

# Those that refer to others come first: who empties a database for the next test does not look at that.
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
    """Whoever runs the tests may have a service of his own configured."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server(servers: Servers) -> DatabaseMaker:
    """One version is enough here: what differs between them is Holdfast's business."""
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
    """An API that runs, and a client of it."""

    url: str
    client: Client
    service: Service
    server: ApiServer


@asynccontextmanager
async def running_api(settings: Settings) -> AsyncIterator[Api]:
    """In this process, on a port of its own; leaving the block stops it as a signal would."""
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
    """A copy of the service's own, for tests to spoil."""
    return Path(shutil.copytree(Settings.model_fields["templates_folder"].default, tmp_path / "templates"))


@pytest.fixture
async def mails() -> AsyncIterator[MailServer]:
    async with mail_server() as server:
        yield server


@pytest.fixture
async def bench(database: Database, mails: MailServer, templates: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """The worker, which is given its ticks one by one."""
    given = {"smtp_url": mails.url, "templates_folder": templates, "outbox_retry_jitter_ms": 0}
    async with opened_bench(worker_settings(database.url, tmp_path, **given)) as bench:
        yield bench
