"""SQLAlchemy's and Django's kinds of connection, on the drivers that each supports."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings
from django.db import connection as django_connection
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.producer.connection_kinds import Link, isolation_level, kind

CONNECTS: dict[str, Callable[[str], object]] = {"psycopg": psycopg.connect, "psycopg2": psycopg2.connect}
CONNECTS_ASYNC: dict[str, Callable[[str], Awaitable[object]]] = {
    "asyncpg": asyncpg.connect,
    "psycopg": psycopg.AsyncConnection.connect,
}


def engine(driver: str, url: str, level: str) -> sqlalchemy.Engine:
    connect = CONNECTS[driver]
    return sqlalchemy.create_engine(
        f"postgresql+{driver}://", creator=lambda: connect(url), poolclass=NullPool, isolation_level=level
    )


def async_engine(driver: str, url: str, level: str) -> AsyncEngine:
    async def connect() -> object:
        return await CONNECTS_ASYNC[driver](url)

    return create_async_engine(
        f"postgresql+{driver}://", async_creator=connect, poolclass=NullPool, isolation_level=level
    )


def _by(connection: Any) -> Link:  # noqa: ANN401
    """A link for any of SQLAlchemy's objects, which all have the same methods."""
    return Link(connection, lambda sql: connection.execute(text(sql)), connection.begin_nested)


@kind
async def sqlalchemy_connection_on_psycopg(url: str, level: str) -> AsyncIterator[Link]:
    with engine("psycopg", url, level).begin() as connection:
        yield _by(connection)


@kind
async def sqlalchemy_connection_on_psycopg2(url: str, level: str) -> AsyncIterator[Link]:
    with engine("psycopg2", url, level).begin() as connection:
        yield _by(connection)


@kind
async def sqlalchemy_session_on_psycopg(url: str, level: str) -> AsyncIterator[Link]:
    with Session(engine("psycopg", url, level)) as session, session.begin():
        yield _by(session)


@kind
async def sqlalchemy_scoped_session_on_psycopg2(url: str, level: str) -> AsyncIterator[Link]:
    session = scoped_session(sessionmaker(engine("psycopg2", url, level)))
    try:
        with session.begin():
            yield _by(session)
    finally:
        session.remove()


@kind
async def sqlalchemy_async_connection_on_asyncpg(url: str, level: str) -> AsyncIterator[Link]:
    async with async_engine("asyncpg", url, level).begin() as connection:
        yield _by(connection)


@kind
async def sqlalchemy_async_connection_on_psycopg(url: str, level: str) -> AsyncIterator[Link]:
    async with async_engine("psycopg", url, level).begin() as connection:
        yield _by(connection)


@kind
async def sqlalchemy_async_session_on_asyncpg(url: str, level: str) -> AsyncIterator[Link]:
    async with AsyncSession(async_engine("asyncpg", url, level)) as session, session.begin():
        yield _by(session)


@kind
async def sqlalchemy_async_session_on_psycopg(url: str, level: str) -> AsyncIterator[Link]:
    async with AsyncSession(async_engine("psycopg", url, level)) as session, session.begin():
        yield _by(session)


@kind
async def sqlalchemy_async_scoped_session(url: str, level: str) -> AsyncIterator[Link]:
    maker = async_sessionmaker(async_engine("asyncpg", url, level))
    session = async_scoped_session(maker, scopefunc=asyncio.current_task)
    try:
        async with session.begin():
            yield _by(session)
    finally:
        await session.remove()


@contextmanager
def django_databases(url: str, level: str) -> Iterator[None]:
    """Two aliases for one database, because an application may use more than the default alias."""
    parts = conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts["port"],
        "OPTIONS": {"isolation_level": isolation_level(level)},
    }
    if not settings.configured:
        settings.configure(LOGGING_CONFIG=None)
        django.setup()
    connections.settings = connections.configure_settings({"default": database, "orders": dict(database)})
    try:
        yield
    finally:
        connections.close_all()
        for connection in connections.all(initialized_only=True):
            del connections[connection.alias]


def _atomic(connection: object, alias: str) -> Link:
    def execute(sql: str) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(sql)

    return Link(connection, execute, lambda: transaction.atomic(using=alias))


@kind
async def django_default_connection(url: str, level: str) -> AsyncIterator[Link]:
    with django_databases(url, level), transaction.atomic():
        yield _atomic(django_connection, "default")


@kind
async def django_named_connection(url: str, level: str) -> AsyncIterator[Link]:
    with django_databases(url, level), transaction.atomic(using="orders"):
        yield _atomic(connections["orders"], "orders")


@kind
async def django_cursor(url: str, level: str) -> AsyncIterator[Link]:
    with django_databases(url, level), transaction.atomic(), django_connection.cursor() as cursor:
        yield _atomic(cursor, "default")


ONE_OF_EACH_LIBRARY = [
    "asyncpg_connection",
    "psycopg_connection",
    "psycopg_async_connection",
    "psycopg2_connection",
    "sqlalchemy_session_on_psycopg",
    "sqlalchemy_async_session_on_asyncpg",
    "sqlalchemy_async_session_on_psycopg",
    "django_default_connection",
]
"""For tests that do not depend on how a connection is recognized."""
