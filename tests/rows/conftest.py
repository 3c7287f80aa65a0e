"""`deliveries` and `outbox`: the database of each application, with its tables ready to be used as queues."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from tests.databases import Database, connected, opened_store
from tests.rows.tables import DELIVERIES_TABLE, DISPATCH, OUTBOX, OUTBOX_TABLE, RECEIPTS, migrate


@dataclass(frozen=True, slots=True)
class Place:
    """One database, as seen by its application and by Holdfast."""

    url: str
    connection: "asyncpg.Connection[asyncpg.Record]"
    store: PostgresStore

    def rows(self, mapping: Rows) -> RowStore:
        return RowStore(self.store, mapping)

    @property
    def clock(self) -> PostgresClock:
        return PostgresClock(self.store)


@pytest.fixture
async def place(database: Database) -> AsyncIterator[Place]:
    """A database without tables."""
    async with opened_store(database.url) as store, connected(database.url) as connection:
        yield Place(database.url, connection, store)


@pytest.fixture
async def deliveries(place: Place) -> Place:
    await place.connection.execute(DELIVERIES_TABLE)
    await migrate(place.connection, DISPATCH, RECEIPTS)
    return place


@pytest.fixture
async def outbox(place: Place) -> Place:
    await place.connection.execute(OUTBOX_TABLE)
    await migrate(place.connection, OUTBOX)
    return place
