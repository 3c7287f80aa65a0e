"""A forward step of the store's clock does not cause the rescue of leases that are being renewed."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.claim import LONGEST_LENGTH
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.limits import SHORTEST_LEASE
from holdfast.store.contract import Ended
from holdfast.worker.store_time import StoreTime
from tests.worker.harness import Database, fast, final_job, job_in_state, until, working

START = datetime(2030, 1, 1, tzinfo=UTC)
TOLERANCE = SHORTEST_LEASE / 6


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def by_clock(seconds: float, longest: float | None = None) -> Ended:
    """The leases that have ended when the clock shows this."""
    return Ended(after(seconds) + TOLERANCE, None if longest is None else timedelta(seconds=longest))


def test_a_clock_that_advances_like_ours_is_trusted() -> None:
    time = StoreTime()
    for at in (0.0, 10.0, 20.0, 3600.0):
        assert time.ended(after(at), 1000 + at, 1000 + at) == [by_clock(at)]


def test_each_lease_follows_a_step_forward_once_two_thirds_of_its_length_have_passed() -> None:
    time = StoreTime()
    time.ended(after(0), 1000, 1000)
    # The clock stepped by an hour between the call above and this one.
    assert time.ended(after(3610), 1010, 1010) == [by_clock(10), by_clock(3610, longest=0)]
    assert time.ended(after(3612), 1012, 1012) == [by_clock(12), by_clock(3612, longest=3)]
    assert time.ended(after(3630), 1030, 1030) == [by_clock(30), by_clock(3630, longest=30)]
    # Longer ones cannot be told apart.
    longest = LONGEST_LENGTH.total_seconds()
    at = 10 + longest * 2 / 3
    assert time.ended(after(3600 + at - 3), 1000 + at - 3, 1000 + at - 3)[0] == by_clock(at - 3)
    assert time.ended(after(3600 + at), 1000 + at, 1000 + at) == [by_clock(3600 + at)]


def test_a_second_step_forward_begins_the_wait_again() -> None:
    time = StoreTime()
    time.ended(after(0), 1000, 1000)
    time.ended(after(100), 1000, 1000)
    assert time.ended(after(120), 1020, 1020) == [by_clock(20), by_clock(120, longest=30)]
    assert time.ended(after(221), 1021, 1021) == [by_clock(21), by_clock(221, longest=0)]
    assert time.ended(after(241), 1041, 1041) == [by_clock(41), by_clock(241, longest=30)]


def test_a_late_answer_is_not_a_step() -> None:
    time = StoreTime()
    time.ended(after(0), 1000, 1000)
    assert time.ended(after(20), 1005, 1020) == [by_clock(20)]


def test_a_step_back_is_followed_at_once() -> None:
    time = StoreTime()
    time.ended(after(3600), 1000, 1000)
    assert time.ended(after(10), 1010, 1010) == [by_clock(10)]
    assert time.ended(after(20), 1020, 1020) == [by_clock(20)]


def test_a_step_that_is_taken_back_is_forgotten() -> None:
    time = StoreTime()
    time.ended(after(0), 1000, 1000)
    assert len(time.ended(after(3610), 1010, 1010)) == 2
    assert time.ended(after(20), 1020, 1020) == [by_clock(20)]
    assert time.ended(after(30), 1030, 1030) == [by_clock(30)]


async def test_a_worker_with_short_leases_does_not_rescue_a_longer_one_that_is_being_renewed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = Holdfast(database.url), Holdfast(database.url)
    begun, let_go = asyncio.Event(), asyncio.Event()

    @short.handler("short", queue="short", lease="3s")
    async def passes(job: RunningJob[Any]) -> None:
        """Never called."""

    @long.handler("long", queue="long", lease="45s")
    async def waits(job: RunningJob[Any]) -> None:
        begun.set()
        await let_go.wait()

    ahead = 0.0

    async def jump(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds
        await short.clock.advance(timedelta(seconds=seconds))

    monkeypatch.setattr("holdfast.worker.worker.lease_now", lambda: lease_now() + ahead)
    async with short, long, working(short, fast()) as rescuer, working(long, fast()):
        id = (await long.enqueue("long", queue="long")).id
        await until(begun.is_set, "the job runs")
        await rescuer.worker.rescue()
        await short.clock.advance(timedelta(minutes=5))
        assert (await rescuer.worker.rescue()).rescued == 0
        # Two thirds of the shorter lease, after which the longer one may still be waiting for its first renewal.
        await jump(4.0)
        assert (await rescuer.worker.rescue()).rescued == 0
        assert (await job_in_state(long, id, JobState.RUNNING)).losses == 0
        let_go.set()
        assert (await final_job(long, id)).attempt == 1


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
