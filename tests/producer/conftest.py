"""A shop: a database with one table next to Holdfast's, and an app that is never opened."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast import Holdfast
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, DatabaseMaker, no_task_left


@dataclass(frozen=True, slots=True)
class Shop:
    database: Database
    app: Holdfast
    looking: psycopg.Connection[dict[str, Any]]

    @property
    def url(self) -> str:
        return self.database.url

    def orders(self) -> list[int]:
        return [row["number"] for row in self.rows("SELECT number FROM orders ORDER BY number")]

    def jobs(self) -> list[UUID]:
        """The jobs waiting to be claimed, in the order of their IDs."""
        return [
            row["id"] for row in self.rows("SELECT id FROM holdfast.ready JOIN holdfast.job USING (id) ORDER BY id")
        ]

    def rows(self, sql: str, *parameters: object) -> list[dict[str, Any]]:
        return self.looking.execute(sql.encode(), parameters).fetchall()

    def proxy(self) -> Proxy:
        return Proxy.before(self.url)


@pytest.fixture
async def shop(threads_end: None, server: DatabaseMaker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    # Django refuses to block an event loop; here nothing else runs on the loop.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with (
        server.emptied_database() as database,
        psycopg.connect(database.url, autocommit=True, row_factory=dict_row) as looking,
    ):
        looking.execute("CREATE TABLE orders (number integer); CREATE TABLE levels (level text)")
        try:
            async with no_task_left():
                yield Shop(database, Holdfast(database.url), looking)
        finally:
            looking.execute("DROP TABLE orders, levels")
