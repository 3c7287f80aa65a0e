"""`app.url`: the address of the store's database, for the application's own connections."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import psycopg
import pytest

from holdfast import Holdfast, InvalidInput
from tests.databases import Servers
from tests.worker.harness import Database


@pytest.fixture
def database(servers: Servers) -> Iterator[Database]:
    with servers.get("embedded-18").emptied_database() as made, closing(Database(made.name, made.url)) as database:
        yield database


async def databases_seen_at(url: str) -> set[object]:
    """The database in which asyncpg and psycopg arrive."""
    connection = await asyncpg.connect(url)
    try:
        seen = await connection.fetchval("SELECT current_database()")
    finally:
        await connection.close()
    async with await psycopg.AsyncConnection.connect(url) as other:
        (row,) = await (await other.execute("SELECT current_database()")).fetchall()
    return {seen, *row}


@pytest.mark.postgres
@pytest.mark.parametrize("option", ["pgbouncer=0", "pgbouncer=1", "application_name=a%20shop"])
async def test_drivers_connect_to_the_address_of_a_server(database: Database, option: str) -> None:
    app = Holdfast(f"{database.url}&{option}")
    assert await databases_seen_at(app.url) == {database.name}
    async with app:
        assert await databases_seen_at(app.url) == {database.name}
        assert await databases_seen_at(await asyncio.to_thread(lambda: app.url)) == {database.name}


@pytest.mark.postgres
async def test_drivers_connect_to_an_embedded_database_while_the_app_is_open(tmp_path: Path) -> None:
    app = Holdfast(f"embedded:{tmp_path}?durability=off")
    with pytest.raises(InvalidInput, match=r"^url: the embedded database .* use `async with app:`"):
        _ = app.url
    async with app:
        assert await databases_seen_at(app.url) == {"postgres"}
    with pytest.raises(InvalidInput):
        _ = app.url


@pytest.mark.postgres
def test_a_script_learns_the_address_after_a_call_of_sync(tmp_path: Path) -> None:
    app = Holdfast(f"embedded:{tmp_path}?durability=off")
    with closing(app.sync):
        app.sync.jobs.count()
        assert asyncio.run(databases_seen_at(app.url)) == {"postgres"}


@pytest.mark.parametrize(
    ("store", "url"),
    [
        ("postgresql+asyncpg://ann@db/shop?ssl=require", "postgresql://ann@db/shop?sslmode=require"),
        (
            "postgresql://ann:pw@one,two/shop?pgbouncer=1&options=-c%20a%3Db",
            "postgresql://ann:pw@one,two/shop?options=-c%20a%3Db",
        ),
        ("postgresql://ann@db/shop?pgbouncer=1", "postgresql://ann@db/shop"),
    ],
)
def test_the_address_is_one_that_drivers_understand(store: str, url: str) -> None:
    assert Holdfast(store).url == url


async def test_a_store_in_memory_has_no_address() -> None:
    app = Holdfast("memory:")
    with pytest.raises(InvalidInput, match=r"^url: a store in memory has no database"):
        _ = app.url
    async with app:
        with pytest.raises(InvalidInput, match=r"^url: a store in memory has no database"):
            _ = app.url
