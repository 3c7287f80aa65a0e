"""A store that returns to an earlier state, as after a restore, while its clients keep running."""

from collections.abc import Awaitable, Callable
from copy import deepcopy

from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows.store import RowStore
from tests.databases import StoreCase, connected

Restore = Callable[[], Awaitable[None]]

_TABLES = """
SELECT format('%I.%I', nspname, relname) AS name, format('earlier.%I', nspname || '.' || relname) AS copy
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relkind = 'r' AND nspname <> 'information_schema' AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'earlier'
"""
_SEQUENCES = "SELECT format('%I.%I', schemaname, sequencename) AS name, last_value FROM pg_sequences"


async def earlier_state(case: StoreCase) -> Restore:
    """Return a function that restores everything the store contains now, including its sequences."""
    if isinstance(case.store, MemoryStore):
        return await _of_memory(case.store)
    store = case.store.table.store if isinstance(case.store, RowStore) else case.store
    assert isinstance(store, PostgresStore)
    return await of_database(store.url)


async def _of_memory(store: MemoryStore) -> Restore:
    jobs = deepcopy(store._jobs)

    async def restore() -> None:
        store._jobs = jobs

    return restore


async def of_database(url: str) -> Restore:
    async with connected(url) as connection:
        tables = [(row["name"], row["copy"]) for row in await connection.fetch(_TABLES)]
        await connection.execute("CREATE SCHEMA earlier")
        for name, copy in tables:
            await connection.execute(f"CREATE TABLE {copy} AS TABLE {name}")
        sequences = [(row["name"], row["last_value"]) for row in await connection.fetch(_SEQUENCES)]

    async def restore() -> None:
        async with connected(url) as connection, connection.transaction():
            await connection.execute(f"TRUNCATE {', '.join(name for name, _ in tables)}")
            for name, copy in tables:
                await connection.execute(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE SELECT * FROM {copy}")
            for name, last in sequences:
                await connection.execute(
                    "SELECT setval($1::text::regclass, coalesce($2, 1), $2 IS NOT NULL)", name, last
                )
            await connection.execute("DROP SCHEMA earlier CASCADE")

    return restore
