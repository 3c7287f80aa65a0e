"""Blocking code that uses its own connections."""

from typing import Any, assert_type

import psycopg
import psycopg2.extensions
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from holdfast import Holdfast, Published, RunningJob, SyncEnqueued
from tests.typing.programs.shared_kinds import COUNT, SEND, Invoice, Sent

app = Holdfast()


def in_a_transaction(
    psycopg_connection: psycopg.Connection[tuple[object, ...]],
    psycopg_cursor: psycopg.Cursor[tuple[object, ...]],
    psycopg2_connection: psycopg2.extensions.connection,
    psycopg2_cursor: psycopg2.extensions.cursor,
    sqlalchemy_connection: Connection,
    session: Session,
    scoped: scoped_session[Session],
    django_connection: Any,
) -> None:
    assert_type(app.sync.enqueue(SEND, Invoice(1), conn=psycopg_connection, key="1"), SyncEnqueued[Sent])
    assert_type(app.sync.enqueue(COUNT, conn=psycopg_cursor), SyncEnqueued[int])
    assert_type(app.sync.enqueue("sweep", {"days": 1}, conn=psycopg2_connection), SyncEnqueued[Any])
    assert_type(app.sync.enqueue_many([app.job(SEND, Invoice(1))], conn=psycopg2_cursor), list[SyncEnqueued[Sent]])
    assert_type(app.sync.publish("invoice.paid", Invoice(1), conn=sqlalchemy_connection), Published)
    app.sync.cancel(["01890a5d-ac96-774b-bcce-b302099a8057"], conn=session)
    app.sync.retry(["01890a5d-ac96-774b-bcce-b302099a8057"], conn=scoped)
    app.sync.enqueue(SEND, Invoice(1), conn=django_connection)


@app.handler(SEND)
async def send(job: RunningJob[Invoice]) -> Sent:
    return Sent(str(job.payload.number))


@app.handler("count")
def count(job: RunningJob[None]) -> int:
    return job.attempt


def with_the_handler(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    assert_type(send.sync.enqueue(Invoice(1), key="1"), SyncEnqueued[Sent])
    assert_type(send.sync.enqueue(Invoice(1), conn=connection).result(), Sent)
    assert_type(count.sync.enqueue(delay="1m"), SyncEnqueued[int])


def and_the_result() -> None:
    assert_type(app.sync.enqueue(SEND, Invoice(1)).result(timeout="15s"), Sent)
