"""What a type checker is to know of `enqueue_in`: mypy runs over this file with the types of the real libraries."""

from collections.abc import Awaitable
from typing import assert_type

import asyncpg
import psycopg
import psycopg2.extensions
import sqlalchemy
from asyncpg.pool import PoolConnectionProxy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from holdfast import Enqueued, Holdfast, NewJob


def async_connections_have_to_be_awaited(
    app: Holdfast,
    job: NewJob,
    connection: "asyncpg.Connection[asyncpg.Record]",
    proxy: "PoolConnectionProxy[asyncpg.Record]",
    psycopg_connection: psycopg.AsyncConnection[object],
    psycopg_cursor: psycopg.AsyncCursor[object],
    sqlalchemy_connection: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
) -> None:
    assert_type(app.enqueue_in(connection, job), Awaitable[Enqueued])
    assert_type(app.enqueue_in(connection, "ship", {"order": 1}, key="order-1"), Awaitable[Enqueued])
    assert_type(app.enqueue_many_in(connection, [job]), Awaitable[list[Enqueued]])
    assert_type(app.enqueue_in(proxy, job), Awaitable[Enqueued])
    assert_type(app.enqueue_in(psycopg_connection, job), Awaitable[Enqueued])
    assert_type(app.enqueue_in(psycopg_cursor, job), Awaitable[Enqueued])
    assert_type(app.enqueue_in(sqlalchemy_connection, job), Awaitable[Enqueued])
    assert_type(app.enqueue_in(session, job), Awaitable[Enqueued])
    assert_type(app.enqueue_many_in(session, [job]), Awaitable[list[Enqueued]])
    assert_type(app.enqueue_in(scoped, job), Awaitable[Enqueued])


def blocking_connections_answer(
    app: Holdfast,
    job: NewJob,
    psycopg_connection: psycopg.Connection[object],
    psycopg_cursor: psycopg.Cursor[object],
    psycopg2_connection: psycopg2.extensions.connection,
    psycopg2_cursor: psycopg2.extensions.cursor,
    sqlalchemy_connection: sqlalchemy.Connection,
    session: Session,
    scoped: scoped_session[Session],
) -> None:
    assert_type(app.enqueue_in(psycopg_connection, job), Enqueued)
    assert_type(app.enqueue_in(psycopg_connection, "ship", {"order": 1}, key="order-1"), Enqueued)
    assert_type(app.enqueue_many_in(psycopg_connection, [job]), list[Enqueued])
    assert_type(app.enqueue_in(psycopg_cursor, job), Enqueued)
    assert_type(app.enqueue_in(psycopg2_connection, job), Enqueued)
    assert_type(app.enqueue_in(psycopg2_cursor, job), Enqueued)
    assert_type(app.enqueue_in(sqlalchemy_connection, job), Enqueued)
    assert_type(app.enqueue_in(session, job), Enqueued)
    assert_type(app.enqueue_many_in(session, [job]), list[Enqueued])
    assert_type(app.enqueue_in(scoped, job), Enqueued)
