"""A forward step of the store's clock does not cause the rescue of leases that are being renewed."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.worker.store_time import StoreTime
from tests.worker.harness import Database, fast, final_job, until, working

START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = 30.0
TOLERANCE = 5.0


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_clock_that_advances_like_ours_is_trusted() -> None:
    time = StoreTime(LEASE, LEASE)
    for at in (0.0, 10.0, 20.0, 3600.0):
        assert time.ended_by(after(at), 1000 + at, 1000 + at) == after(at + TOLERANCE)


def test_a_step_forward_is_followed_once_every_lease_could_be_renewed() -> None:
    time = StoreTime(LEASE, LEASE)
    time.ended_by(after(0), 1000, 1000)
    # The clock stepped by an hour between the call above and this one.
    assert time.ended_by(after(3610), 1010, 1010) == after(10 + TOLERANCE)
    assert time.ended_by(after(3629.9), 1029.9, 1029.9) == after(29.9 + TOLERANCE)
    assert time.ended_by(after(3630), 1030, 1030) == after(3630 + TOLERANCE)
    assert time.ended_by(after(3640), 1040, 1040) == after(3640 + TOLERANCE)


def test_the_longest_lease_sets_the_delay_and_the_shortest_the_tolerance() -> None:
    time = StoreTime(6, 600)
    time.ended_by(after(0), 1000, 1000)
    assert time.ended_by(after(1), 1000, 1000) == after(1 + 1)
    assert time.ended_by(after(3), 1000, 1000) == after(1 + 1)
    assert time.ended_by(after(3 + 399), 1399, 1399) == after(1 + 399 + 1)
    assert time.ended_by(after(3 + 400), 1400, 1400) == after(3 + 400 + 1)


def test_a_late_answer_is_not_a_step() -> None:
    time = StoreTime(LEASE, LEASE)
    time.ended_by(after(0), 1000, 1000)
    assert time.ended_by(after(20), 1005, 1020) == after(20 + TOLERANCE)


def test_a_step_back_is_followed_at_once() -> None:
    time = StoreTime(LEASE, LEASE)
    time.ended_by(after(3600), 1000, 1000)
    assert time.ended_by(after(10), 1010, 1010) == after(10 + TOLERANCE)
    assert time.ended_by(after(20), 1020, 1020) == after(20 + TOLERANCE)


@pytest.mark.parametrize("step", [0.6, 3.0], ids=["more than half a lease", "three leases"])
async def test_a_step_of_the_stores_clock_rescues_no_lease_that_is_being_renewed(
    step: float, database: Database
) -> None:
    app = Holdfast(database.url)
    begun, let_go = asyncio.Event(), asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        begun.set()
        await let_go.wait()

    # Renewed so rarely that the rescue comes first.
    settings = fast(lease=timedelta(seconds=30), renew=timedelta(seconds=15))
    async with app, working(app, settings) as worker:
        id = (await app.enqueue("waits")).id
        await until(begun.is_set, "the job runs")
        await worker.worker.rescue()
        database.query("UPDATE holdfast.lease SET until = until - interval '14 seconds'")
        await app.clock.advance(step * settings.lease)
        assert (await worker.worker.rescue()).rescued == 0
        let_go.set()
        job = await final_job(app, id)
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)


async def test_a_lease_that_expired_by_both_clocks_is_rescued_even_after_a_step(database: Database) -> None:
    app = Holdfast(database.url)
    attempts: list[int] = []
    let_go = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        attempts.append(job.attempt)
        await let_go.wait()

    async with app, working(app, fast(renew=timedelta(seconds=15))) as worker:
        await app.enqueue("waits")
        await until(lambda: len(attempts) == 1, "the job runs")
        await worker.worker.rescue()
        await app.clock.advance(timedelta(hours=1))
        database.query("UPDATE holdfast.lease SET until = holdfast.now() - interval '61 minutes'")
        # The worker's own rescue may come first, and the worker survives the loss and reports it, so what remains to be
        # seen of the rescue is the second attempt.
        await worker.worker.rescue()
        await until(lambda: len(attempts) == 2, "the job runs again")
        let_go.set()
