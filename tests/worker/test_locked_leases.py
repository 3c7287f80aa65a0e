"""Leases locked by the handler's transaction or by another one: they are not renewed, but no work is lost."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.job import Lease
from holdfast.worker.worker import Rescue, Worker
from tests.databases import connected
from tests.worker.harness import Database, codes, fast, final_job, until, working

pytestmark = [pytest.mark.postgres, pytest.mark.fault]

LEASE = timedelta(seconds=5)
_OVERDUE = "SELECT until <= holdfast.now() FROM holdfast.lease"


async def test_a_handler_whose_lease_another_transaction_locks_is_stopped_before_it_ends(
    database: Database,
) -> None:
    app = Holdfast(database.url)
    running: list[UUID] = []
    stopped = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        running.append(job.id)
        if stopped.is_set():
            return
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with app, connected(database.url) as other, working(app, fast(lease=LEASE)) as worker:
        await app.enqueue("waits", attempts=1)
        await until(lambda: running, "the job runs")
        rescuing = other.transaction()
        await rescuing.start()
        # Like a rescue that has not committed yet.
        await other.execute("SELECT FROM holdfast.lease FOR UPDATE")
        await until(stopped.is_set, "it is stopped although the lock is still there", seconds=10)
        assert database.query(_OVERDUE) == [(False,)]
        await rescuing.rollback()
        await until(lambda: worker.worker.is_empty, "its outcome is written")


async def test_an_overdue_lease_is_renewed_as_soon_as_its_handlers_transaction_rolls_back(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rescue could be as quick as the renewal and take the job.
    monkeypatch.setattr(Worker, "rescue", _no_rescue)
    app = Holdfast(database.url)
    begun: list[Lease] = []
    outlived = asyncio.Event()

    @app.handler("outlives")
    async def outlives(job: RunningJob[Any]) -> str:
        begun.append(job.lease)
        async with connected(database.url) as connection:
            transaction = connection.transaction()
            await transaction.start()
            await job.finish_in(connection)
            await until(lambda: database.query(_OVERDUE) == [(True,)], "the lease is over by now")
            await transaction.rollback()
            await until(lambda: database.query(_OVERDUE) == [(False,)], "it is renewed at once", seconds=1)
            outlived.set()
            async with connection.transaction():
                await job.finish_in(connection, "done")
        return "not written"

    async with app, working(app, fast(lease=LEASE)):
        id = (await app.enqueue("outlives")).id
        job = await final_job(app, id)
    assert outlived.is_set()
    assert (job.state, job.result, job.attempt, job.losses) == (JobState.SUCCEEDED, "done", 1, 0)
    assert (len(begun), codes(job)) == (1, [])


async def _no_rescue(worker: Worker) -> Rescue:
    return Rescue(0, 60.0)


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_blocking_handler_can_also_hold_its_lease_past_its_end(isolation: str, database: Database) -> None:
    app = Holdfast(database.url)
    app.handler("holds", isolation=isolation)(holds)
    async with app, working(app, fast(lease=LEASE)):
        job = await final_job(app, (await app.enqueue("holds", database.url)).id)
    assert (job.state, job.result, job.attempt, job.losses) == (JobState.SUCCEEDED, "done", 1, 0)
    assert codes(job) == []


def holds(job: RunningJob[str]) -> None:
    import psycopg

    with psycopg.connect(job.payload) as connection:
        job.finish_in(connection, "done")
        # There is no condition to wait for: the lease must expire.
        connection.execute("SELECT pg_sleep(%s)", [1.5 * LEASE.total_seconds()])
