"""A PostgreSQL server with production settings, and with features that the other test servers lack."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from tests.databases import Database, DatabaseMaker, no_task_left

_SETTINGS = ("ALTER SYSTEM SET max_prepared_transactions = 5", "ALTER SYSTEM SET max_replication_slots = 5")


@pytest.fixture(scope="session")
def durable_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseMaker]:
    address = EmbeddedAddress(tmp_path_factory.mktemp("durable") / "postgres")
    with EmbeddedServer.start(address) as server, psycopg.connect(server.url(), autocommit=True) as admin:
        for setting in _SETTINGS:
            admin.execute(setting.encode())
    with EmbeddedServer.start(address) as server:
        maker = DatabaseMaker(server)
        yield maker
        maker.close()


@pytest.fixture
async def durable_database(threads_end: None, durable_server: DatabaseMaker) -> AsyncIterator[Database]:
    with durable_server.emptied_database() as database:
        async with no_task_left():
            yield database
