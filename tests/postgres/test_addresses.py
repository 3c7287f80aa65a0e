"""Addresses in the form that other libraries use, and an app that installs the schema itself."""

import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.domain.address import without_driver
from holdfast.store.postgres.address import Address
from tests.databases import Database, connected


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql+asyncpg://ann:a+b@db/shop", "postgresql://ann:a+b@db/shop"),
        ("postgresql+psycopg://db/shop", "postgresql://db/shop"),
        ("postgresql+psycopg2://db/shop?connect_timeout=3", "postgresql://db/shop?connect_timeout=3"),
        ("postgres+asyncpg://db/shop?a=1&ssl=require", "postgres://db/shop?a=1&sslmode=require"),
        ("postgresql://db/shop?ssl=require", "postgresql://db/shop?ssl=require"),
        ("postgresql://ann:a+b://c@db/shop", "postgresql://ann:a+b://c@db/shop"),
        ("mysql+asyncmy://db/shop", "mysql+asyncmy://db/shop"),
        ("embedded:/a+b", "embedded:/a+b"),
    ],
)
def test_the_driver_name_is_removed_from_the_address(given: str, kept: str) -> None:
    assert without_driver(given) == kept


def test_an_address_that_is_not_postgresql_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^store: 'mysql\+asyncmy' is not known; use postgresql://"):
        Holdfast("mysql+asyncmy://ann:secret@db/shop")
    assert Address.parse("postgresql+asyncpg://db/shop").dsn == "postgresql://db/shop"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg2"])
async def test_an_app_migrates_and_works_with_an_sqlalchemy_address(empty_database: Database, driver: str) -> None:
    address = empty_database.url.replace("postgresql://", f"postgresql+{driver}://", 1)
    app = Holdfast(address)
    first = await app.migrate()
    assert [migration.version for migration in first.migrations][:1] == [1]
    assert (await app.migrate()).migrations == ()
    async with app, connected(empty_database.url) as connection:
        enqueued = await app.enqueue("work")
        assert await connection.fetchval("SELECT id FROM holdfast.job") == enqueued.id


async def test_the_memory_store_needs_no_migration() -> None:
    app = Holdfast("memory:")
    assert (await app.migrate()).migrations == ()
