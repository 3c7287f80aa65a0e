"""A database with Holdfast's schema and the application's tables, and an open app to run its jobs."""

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from apps.passports.database import sql
from apps.passports.settings import Settings
from tests.apps.passports.bench import Bench, opened_bench, worker_settings
from tests.apps.passports.receiver import Receiver, running_receiver
from tests.databases import Database, DatabaseMaker, Servers, no_task_left


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the application's variables, in case the person running the tests has set some."""
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server(servers: Servers) -> DatabaseMaker:
    """One PostgreSQL version is enough here: Holdfast's own tests cover the differences between versions."""
    return servers.get("embedded-18")


@pytest.fixture
async def database(threads_end: None, server: DatabaseMaker) -> AsyncIterator[Database]:
    with server.emptied_database(sql("schema")) as database:
        async with no_task_left():
            yield database
        _empty(database.url)


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        # Without triggers and foreign keys, because audit events cannot be deleted otherwise.
        connection.execute("SET session_replication_role = replica")
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'passports'").fetchall()
        for (table,) in tables:
            connection.execute(SQL("DELETE FROM {}").format(Identifier("passports", table)))
        # Gives back the pages, so that nothing else tries to delete its rows.
        connection.execute("VACUUM passports.audit_events")


@pytest.fixture
def settings(database: Database) -> Settings:
    return worker_settings(database.url)


@pytest.fixture
async def bench(settings: Settings) -> AsyncIterator[Bench]:
    """The worker. Tests run its ticks one at a time."""
    async with opened_bench(settings) as bench:
        yield bench


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as receiver:
        yield receiver
