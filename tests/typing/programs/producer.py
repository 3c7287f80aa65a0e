"""A producer's calls: single, in a caller's transaction, in bulk, events, and results."""

from typing import Any, assert_type
from uuid import UUID

import asyncpg
import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

from holdfast import Enqueued, Holdfast, Job, JobFailed, NewJob, Published, Statement
from tests.typing.programs.shared_kinds import ARCHIVE, COUNT, EITHER, LINES, SEND, SWEEP, Invoice, Sent

app = Holdfast()


async def alone() -> None:
    async with app:
        enqueued = await app.enqueue(SEND, Invoice(18), key="18", delay="5m")
        assert_type(enqueued, Enqueued[Sent])
        assert_type(enqueued.id, UUID)
        try:
            assert_type(await enqueued.result(timeout="15s"), Sent)
        except JobFailed as failed:
            assert_type(failed.code, str)
            assert_type(failed.job, Job)
        assert_type(await app.enqueue(ARCHIVE, Invoice(1)), Enqueued[None])
        assert_type(await app.enqueue(SWEEP), Enqueued[None])
        assert_type(await app.enqueue(COUNT), Enqueued[int])
        assert_type(await app.enqueue(LINES, [Invoice(1)]), Enqueued[dict[str, int]])
        await app.enqueue(EITHER, Sent("1"))
        assert_type(await app.enqueue("invoice.send", {"number": 17}), Enqueued[Any])
        assert_type(await app.enqueue("sweep"), Enqueued[Any])
        assert_type(await app.publish("invoice.paid", Invoice(1), key="1"), Published)


async def in_a_transaction(
    connection: "asyncpg.Connection[asyncpg.Record]",
    proxy: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]",
    psycopg_connection: psycopg.AsyncConnection[tuple[object, ...]],
    cursor: psycopg.AsyncCursor[tuple[object, ...]],
    sqlalchemy_connection: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
) -> None:
    assert_type(await app.enqueue(SEND, Invoice(1), conn=connection), Enqueued[Sent])
    assert_type(await app.enqueue(SEND, Invoice(1), conn=proxy, key="1"), Enqueued[Sent])
    assert_type(await app.enqueue(SWEEP, conn=psycopg_connection), Enqueued[None])
    assert_type(await app.enqueue("sweep", conn=cursor), Enqueued[Any])
    assert_type(await app.enqueue(app.job(SEND, Invoice(1)), conn=sqlalchemy_connection), Enqueued[Sent])
    assert_type(await app.enqueue_many([app.job(SEND, Invoice(1))], conn=session), list[Enqueued[Sent]])
    assert_type(await app.publish("invoice.paid", conn=scoped), Published)
    await app.cancel([str(UUID(int=1))], conn=connection)
    await app.retry([UUID(int=1)], conn=session)


async def many() -> None:
    jobs = [app.job(SEND, Invoice(number), key=str(number)) for number in range(3)]
    assert_type(jobs, list[NewJob[Sent]])
    for each in await app.enqueue_many(jobs):
        assert_type(await each.result(), Sent)
    both = await app.enqueue_many([app.job(SEND, Invoice(1)), app.job(COUNT)])
    print(await both[0].result())
    mixed: list[NewJob] = [*jobs, app.job("sweep"), app.job(COUNT)]
    assert_type(await app.enqueue_many(mixed), list[Enqueued])


async def by_hand(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    statement = app.statement(app.job(SEND, Invoice(1)), app.job(SEND, Invoice(2)))
    assert_type(statement, Statement[list[Enqueued[Sent]]])
    (first, _) = statement.read(await connection.fetch(statement.sql, *statement.parameters))
    assert_type(first, Enqueued[Sent])
