"""The findings of doctor, one check at a time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from holdfast.doctor.doctor import examine
from holdfast.doctor.findings import Finding, Limits
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresClock
from tests.databases import Database, StoreCase, connected, opened_store

NOW = timedelta(0)


async def found(database: Database, check: str, limits: Limits | None = None, *, deep: bool = False) -> list[Finding]:
    return [each for each in await examine(database.url, deep=deep, limits=limits) if each.check == check]


async def only(database: Database, check: str, limits: Limits | None = None, *, deep: bool = False) -> Finding:
    (finding,) = await found(database, check, limits, deep=deep)
    return finding


async def execute(database: Database, *statements: str) -> None:
    async with connected(database.url) as connection:
        for statement in statements:
            await connection.execute(statement)


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


@asynccontextmanager
async def opened_case(database: Database) -> AsyncIterator[StoreCase]:
    async with opened_store(database.url) as store:
        yield StoreCase(
            "postgres",
            store,
            PostgresReader(store),
            PostgresClock(store),
            PostgresSchedules(store),
            PostgresRuns(store),
        )
