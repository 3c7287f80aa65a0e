"""Producers that wait for another transaction leave a worker the connections it needs."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.errors import DuplicateJob
from tests.worker.harness import Database, drained, fast, until, working

pytestmark = [pytest.mark.postgres, pytest.mark.fault]

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_ID = uuid4()
HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "key": ("SELECT holdfast.enqueue('child', '{}', key => 'held')", {"key": "held"}),
    "id": (f"SELECT holdfast.enqueue('child', '{{}}', job_id => '{_ID}')", {"id": _ID}),
}
MANY = 12
"""More handlers than a process has connections."""


@pytest.mark.parametrize("what", HELD)
async def test_handlers_that_wait_for_another_producer_delay_no_other_job(what: str, database: Database) -> None:
    app, producer = Holdfast(database.url), Holdfast(database.url)
    parents, done = set[UUID](), asyncio.Event()
    sql, options = HELD[what]

    @app.handler("child")
    async def child(job: RunningJob[Any]) -> None: ...

    @app.handler("parent")
    async def parent(job: RunningJob[Any]) -> None:
        parents.add(job.id)
        with suppress(DuplicateJob):
            await app.enqueue("child", **options)

    @app.handler("other")
    async def other(job: RunningJob[Any]) -> None:
        done.set()

    async with app, producer:
        with psycopg.connect(database.url) as holder:
            holder.execute(sql.encode())
            async with working(app, fast(concurrency=MANY + 4)):
                await producer.enqueue_many([producer.job("parent") for _ in range(MANY)])
                await until(lambda: len(parents) == MANY, "all parents run")
                await until(lambda: database.query(_WAITING) >= [(6,)], "they wait for the other producer")
                await producer.enqueue("other")
                await asyncio.wait_for(done.wait(), 5)
                holder.rollback()
                counts = await drained(app)
    assert set(counts) == {JobState.SUCCEEDED}
